"""Ctrl-C in the midst of what is to be done as a whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import get_ident, main_thread
from typing import Final, ParamSpec, TypeVar

from opdump.interpreter.compiled import compiled

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_COMPILED: Final = compiled()


def not_interrupted(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """A function in which SIGINT waits until it has returned; a second one does not wait.

    Python runs handlers of signals between any two of its instructions, in the main thread, and that of Ctrl-C raises KeyboardInterrupt there, which a
    program may catch and go on after. Whoever handles SIGINT, in Python or not, is told of it afterwards, as if it had come then. Where opdump
    was installed without a C++ compiler it does not wait.
    """
    if _COMPILED is None:
        return function
    hold, release = _COMPILED.hold_interrupts, _COMPILED.release_interrupts

    @wraps(function)
    def call(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        if get_ident() != main_thread().ident or not hold():
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        finally:
            release()

    return call
