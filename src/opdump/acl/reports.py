"""Runs the callbacks of a stream in the thread that has subscribed to the stream, when the thread polls for them.

thread, ret = acl.util.start_thread(loop, [context, 100])   # calls acl.rt.process_report(100) again and again
ret = acl.rt.subscribe_report(thread, stream)
ret = acl.mdl.execute_async(model_id, inputs, outputs, stream)
ret = acl.rt.launch_callback(take_outputs, [outputs], 1, stream)
ret = acl.rt.synchronize_stream(stream)                     # the callback has run
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from opdump.acl.codes import Code
from opdump.acl.failures import CallError

_BETWEEN_LOOKS: Final = 0.1
FOREVER: Final = -1


@dataclass(frozen=True, slots=True)
class _Callback:
    function: Callable[[Any], object]
    data: Any
    stream: int


class Reports:
    """The subscriptions of threads to streams, and the callbacks that have not run yet."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._subscribers: dict[int, int] = {}
        """Thread by stream."""
        self._waiting: dict[int, deque[_Callback]] = {}
        """Callbacks by thread."""
        self._undone: Counter[int] = Counter()
        """The number of callbacks of a stream that have not finished."""

    def subscribe(self, thread: int, stream: int, where: str) -> None:
        with self._changed:
            if stream in self._subscribers:
                raise CallError(
                    Code.STREAM_SUBSCRIBE,
                    f"{where}: thread {self._subscribers[stream]} has subscribed to this stream; call acl.rt.unsubscribe_report "
                    "first",
                )
            self._subscribers[stream] = thread
            self._waiting.setdefault(thread, deque())
            self._changed.notify_all()

    def unsubscribe(self, thread: int, stream: int, where: str) -> None:
        with self._changed:
            if self._subscribers.get(stream) != thread:
                raise CallError(Code.STREAM_SUBSCRIBE, f"{where}: thread {thread!r} has not subscribed to this stream")
            del self._subscribers[stream]
            if thread not in self._subscribers.values() and not self._waiting[thread]:
                del self._waiting[thread]

    def launch(self, function: Callable[[Any], object], data: Any, stream: int, where: str) -> None:
        with self._changed:
            thread = self._subscribers.get(stream)
            if thread is None:
                raise CallError(
                    Code.STREAM_NO_CALLBACK,
                    f"{where}: no thread has subscribed to this stream; call acl.rt.subscribe_report(thread, stream) first",
                )
            self._waiting[thread].append(_Callback(function, data, stream))
            self._undone[stream] += 1
            self._changed.notify_all()

    def process(self, timeout: int, where: str) -> None:
        """Run the callbacks that wait for the calling thread; if there are none, wait for some.

        An exception of a callback leaves this call. Raises CallError if none arrived within `timeout` milliseconds.
        """
        own = threading.get_ident()
        deadline = None if timeout == FOREVER else time.monotonic() + timeout / 1000
        with self._changed:
            while not self._waiting.get(own):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    if own in self._waiting:
                        raise CallError(
                            Code.REPORT_TIMEOUT, f"{where}: no callback came in {timeout} ms", is_answer=True
                        )
                    raise CallError(
                        Code.THREAD_SUBSCRIBE,
                        f"{where}: this thread ({own}) has subscribed to no stream; call acl.rt.subscribe_report with its number",
                        is_answer=True,
                    )
                self._changed.wait(left)
            callbacks = self._waiting[own]
        while callbacks:
            callback = callbacks.popleft()
            try:
                callback.function(callback.data)
            finally:
                with self._changed:
                    self._undone[callback.stream] -= 1
                    self._changed.notify_all()

    def has_undone(self, stream: int) -> bool:
        return self._undone[stream] > 0

    def wait(self, stream: int | None, where: str, timeout: int = FOREVER) -> None:
        """Return when the callbacks of a stream, or of all, have run.

        Raises CallError if that can never happen, and if it did not happen within `timeout` milliseconds.
        """
        deadline = None if timeout == FOREVER else time.monotonic() + timeout / 1000
        with self._changed:
            while left := {each for each in self._undone if self._undone[each] > 0 and stream in (None, each)}:
                for each in left:
                    self._must_be_running(each, where)
                if deadline is not None and time.monotonic() >= deadline:
                    raise CallError(
                        Code.STREAM_SYNC_TIMEOUT,
                        f"{where}: callbacks have not run after {timeout} ms: is the thread busy?",
                    )
                self._changed.wait(_BETWEEN_LOOKS)

    def _must_be_running(self, stream: int, where: str) -> None:
        thread = self._subscribers.get(stream)
        if thread == threading.get_ident():
            raise CallError(
                Code.REPORT_TIMEOUT,
                f"{where}: this thread itself runs the callbacks of the stream; call acl.rt.process_report, or wait in another",
            )
        if thread is None or all(each.ident != thread for each in threading.enumerate()):
            raise CallError(
                Code.REPORT_TIMEOUT,
                f"{where}: callbacks wait for thread {thread}, which is over or has unsubscribed; keep it calling "
                "acl.rt.process_report until the stream is done",
            )
