"""Threads that a program starts through `acl.util`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from opdump.acl.failures import MESSAGES

_NO_SUCH_THREAD: Final = 3  # ESRCH of the operating system


class _Thread(threading.Thread):
    def __init__(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        super().__init__(target=function, args=arguments, daemon=True)
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            super().run()
        except BaseException as error:
            self.error = error
            raise  # the interpreter prints it


class Threads:
    """Those that were started and not waited for."""

    def __init__(self) -> None:
        self._running: dict[int, _Thread] = {}

    def start(self, function: Callable[..., object], data: Any) -> int:
        """The number of a new thread. Raises TypeError for what cannot be called."""
        if not callable(function):
            raise TypeError(f"acl.util.start_thread: found {function!r}, expected a function and its argument")
        thread = _Thread(function, () if data is None else (data,))
        thread.start()
        assert thread.ident is not None, "it was started"
        self._running[thread.ident] = thread
        return thread.ident

    def join(self, number: int) -> int:
        """Waits for a thread. Raises RuntimeError from what it raised."""
        thread = self._running.pop(number, None)
        if thread is None:
            MESSAGES.keep(
                f"acl.util.stop_thread: {number!r} is no thread of acl.util.start_thread, or was stopped before"
            )
            return _NO_SUCH_THREAD
        thread.join()
        if thread.error is not None:
            raise RuntimeError(
                f"acl.util.stop_thread: the thread ended by {type(thread.error).__name__}: {thread.error}"
            ) from thread.error
        return 0


# Threads belong to the interpreter, not to what `acl.init` begins.
THREADS: Final = Threads()
