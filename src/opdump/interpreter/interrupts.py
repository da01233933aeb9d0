"""Ctrl-C in the midst of what is to be done as a whole."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import wraps
from threading import get_ident, main_thread
from types import FrameType
from typing import ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def not_interrupted(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """A function in which SIGINT waits until it has returned; a second one does not wait.

    Python runs handlers of signals between any two of its instructions, in the main thread, and that of Ctrl-C raises KeyboardInterrupt there, which a
    program may catch. The handler that is called afterwards is the program's. SIGINT that is ignored, or handled outside of Python, is left alone.
    """

    @wraps(function)
    def call(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        handler = signal.getsignal(signal.SIGINT) if get_ident() == main_thread().ident else None
        if not callable(handler):
            return function(*args, **kwargs)
        noted: list[tuple[int, FrameType | None]] = []

        def note(number: int, frame: FrameType | None) -> None:
            if noted:
                handler(number, frame)
            noted.append((number, frame))

        signal.signal(signal.SIGINT, note)
        try:
            return function(*args, **kwargs)
        finally:
            signal.signal(signal.SIGINT, handler)
            if noted:
                handler(*noted[0])

    return call
