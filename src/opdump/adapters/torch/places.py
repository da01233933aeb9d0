"""Calls functions from frames that look like the program's, so that warnings name the program's line, not opdump's.

    train.py:7: UserWarning: std(): degrees of freedom is <= 0        not calls.py:158

A function mode calls what the program called. PyTorch attributes a warning to a frame above, and Python shows a warning
once per place and filters by module. Without this, all lines of a program would be one place, in none of its files. So the
frames above the function have the files, lines and globals of the program's callers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

from opdump.interpreter.tracebacks import CALLED

NAME = CALLED
"""The name of such a frame, by which readers of stacks skip it."""
_OPDUMP = f"{Path(__file__).parents[2]}/"
_CALL: CodeType = (lambda function, args, kwargs: function(*args, **kwargs)).__code__
_HANDOVER = 3
"""At most this many frames lie between a Python function of PyTorch and the mode that it calls."""
_CALLERS = 5
"""The largest `stacklevel` that is served for a Python function; C functions warn about the frame above them."""
_KEPT = 4096
_Call = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class Places:
    """Makes functions that call from the program's places, one per line."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int, int], tuple[CodeType, _Call]] = {}
        """By the identities of the caller's code and globals, and the line; the value keeps the code, so its id stays unique."""

    def call(self, frame: FrameType, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return `function(*args, **kwargs)`, called as if by the program; `frame` is the one above the mode."""
        callers = _callers(function, frame)
        call = (function, args, kwargs)
        # Nest the calls, so that the innermost caller's frame is directly above `function`.
        for caller in callers[:-1]:
            call = (self._standing(caller), call, {})
        try:
            return self._standing(callers[-1])(*call)
        except BaseException as error:
            # Drop our frames from the traceback: each repeats a line of the program.
            here = error.__traceback__
            while here is not None and here.tb_next is not None and here.tb_next.tb_frame.f_code.co_name == NAME:
                here.tb_next = here.tb_next.tb_next
            raise

    def _standing(self, frame: FrameType) -> _Call:
        code, line = frame.f_code, frame.f_lineno
        key = (id(code), id(frame.f_globals), line)
        made = self._made.get(key)
        if made is None:
            if len(self._made) >= _KEPT:
                self._made.clear()  # a program that creates code while it runs would fill it without end
            # All code of `_CALL` is on its first line, so moving that line moves the line of warnings.
            there = _CALL.replace(co_filename=code.co_filename, co_firstlineno=line, co_name=NAME)
            made = self._made[key] = (code, FunctionType(there, frame.f_globals))
        return made[1]


def _callers(function: Any, frame: FrameType) -> list[FrameType]:
    """The frames of the program's callers, innermost first.

    A Python function has a frame of its own, from which it calls the mode; its caller is the frame above that.
    """
    code = getattr(function, "__code__", None)
    if code is None:
        return [frame]
    above: FrameType | None = frame
    for _ in range(_HANDOVER):
        if above is None or above.f_code is code:
            break
        above = above.f_back
    caller = above.f_back if above is not None and above.f_code is code else frame
    found: list[FrameType] = []
    while caller is not None and len(found) < _CALLERS:
        if not (caller.f_code.co_filename.startswith(_OPDUMP) or caller.f_code.co_name == NAME):
            found.append(caller)
        caller = caller.f_back
    return found or [frame]
