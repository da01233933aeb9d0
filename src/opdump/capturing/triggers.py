"""Triggers outside of the recorder that write the steps kept in memory (`ring`): exceptions and SIGUSR1."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

from opdump.adapters.base import DumpComplete
from opdump.recorder import Recorder

_LOG = logging.getLogger("opdump")


@contextmanager
def triggers(recorder: Recorder) -> Iterator[None]:
    """During the block, fire at the signal and at an exception that ends the block. Without steps in memory, do nothing."""
    plan = recorder.plan
    if not plan.ring:
        yield
        return
    with _signal(recorder) if "signal" in plan.triggers else nullcontext():
        try:
            yield
        except DumpComplete:
            raise
        except BaseException as error:
            # `sys.exit()` at the end of a program is not a failure.
            if "exception" in plan.triggers and not (isinstance(error, SystemExit) and not error.code):
                recorder.fire(f"exception: {type(error).__name__}")
            raise


@contextmanager
def _signal(recorder: Recorder) -> Iterator[None]:
    if not hasattr(signal, "SIGUSR1"):
        yield
        return
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL
    ):
        _LOG.warning(
            "SIGUSR1 triggers nothing: the program has its own handler, or the capture began in another thread"
        )
        yield
        return

    def fire(_number: int, _frame: FrameType | None) -> None:
        recorder.fire("signal")

    signal.signal(signal.SIGUSR1, fire)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGUSR1) is fire:
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)
