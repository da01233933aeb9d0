"""Defers KeyboardInterrupt until a critical section has finished."""

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
    """Decorate a function so that SIGINT waits until it has returned. A second SIGINT does not wait.

    Python runs signal handlers between any two of its instructions in the main thread. The handler of Ctrl-C raises KeyboardInterrupt there, which a
    program may catch to go on. After the function, any handler of SIGINT, in Python or not, is called as if the signal had just arrived. If opdump
    was installed without a C++ compiler, SIGINT does not wait.
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
