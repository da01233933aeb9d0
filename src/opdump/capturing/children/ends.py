"""Detects when the work of a child process begins and ends, which differs for each kind of child."""

from __future__ import annotations

import atexit
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

_MOMENT: Final = 0.02
_MOST_TRIES: Final = 500
_PACKAGE: Final = str(Path(__file__).parents[2]) + os.sep

_AROUND: Final = tuple(
    os.path.join(_PACKAGE, part)
    for part in (
        "__main__.py",
        "commands",
        "startup",
        os.path.join("capturing", "children"),
        os.path.join("adapters", "torch", "training.py"),
    )
)
"""Code of opdump that calls the program and holds no lock meanwhile."""


def when_it_has_its_work(call: Callable[[], object]) -> None:
    """Call a function in a forked process as soon as the process begins its work: after the start-up code of multiprocessing, otherwise now.

    A process that is about to become another program (`preexec_fn` of subprocess) is left alone.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        file = frame.f_code.co_filename
        if file.endswith("subprocess.py") and frame.f_code.co_name == "_execute_child":
            return
        if file.endswith(("popen_fork.py", "forkserver.py")):
            after_bootstrap(call)
            return
        frame = frame.f_back
    call()


def after_bootstrap(call: Callable[[], object]) -> None:
    """Call a function in a multiprocessing process just before its work, in this process or in those forked from it."""
    from multiprocessing.process import BaseProcess

    base: Any = BaseProcess
    original = base._bootstrap

    def bootstrap(process: Any, *args: Any, **kwargs: Any) -> Any:
        after_fork = process._after_fork

        def then() -> None:
            # The process knows its work by now, and starts it next.
            del process._after_fork
            after_fork()
            call()

        process._after_fork = then
        base._bootstrap = original
        return original(process, *args, **kwargs)

    base._bootstrap = bootstrap


def call_at_end(call: Callable[[], object]) -> None:
    """Call a function when this process ends: normally, by SIGTERM, or by `os._exit` in a forked process."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing import util

        # Such a process leaves by os._exit; finalizers with a priority are called before that.
        util.Finalize(None, call, exitpriority=1000)
    asked_to_end = _call_at_termination(call)

    def at_exit() -> None:
        call()
        if asked_to_end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    atexit.register(at_exit)
    _call_before_exit(call)


def _call_before_exit(call: Callable[[], object]) -> None:
    leave, process = os._exit, os.getpid()

    def leave_in_order(status: int) -> NoReturn:
        if os.getpid() == process and not _within_opdump(sys._getframe()):
            call()
        leave(status)

    os._exit = leave_in_order


def _call_at_termination(call: Callable[[], object]) -> list[int]:
    """Call a function at SIGTERM, with which a process pool ends its workers. A process that handles or ignores the signal itself is left alone.

    Return the list that receives the signal if it comes while the interpreter ends, when no thread can be started any more.
    """
    kept: list[int] = []
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return kept
    process = os.getpid()
    patience = itertools.count()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process and _within_opdump(frame) and next(patience) < _MOST_TRIES:
            # The end might wait for a lock that is held here, or has begun already: try again in a moment.
            try:
                threading.Thread(target=_again, args=(number,), name="opdump-signal", daemon=True).start()
            except RuntimeError:
                kept.append(number)
            return
        signal.signal(number, signal.SIG_IGN)
        if os.getpid() == process and not _within_opdump(frame):
            call()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, end)
    return kept


def _again(number: int) -> None:
    time.sleep(_MOMENT)
    os.kill(os.getpid(), number)


def _within_opdump(frame: FrameType | None) -> bool:
    """Return whether opdump itself is at work, and not just calling the program."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_PACKAGE) and not file.startswith(_AROUND):
            return True
        frame = frame.f_back
    return False
