"""Calls functions at the program's place, so that a warning names the line that called it, not a line of opdump.

    train.py:7: UserWarning: std(): degrees of freedom is <= 0        and not calls.py:158

A function mode calls what the program called. Functions of PyTorch warn of a frame above them, and Python shows a warning once for
each place and asks filters for the module: all of a program's lines would be one place, that is in no file of the program. So the
frames above have the files, the lines and the globals of the callers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

from opdump.interpreter.tracebacks import CALLED

NAME = CALLED
"""What such a frame is called: it is no second call of the program's."""
_OPDUMP = f"{Path(__file__).parents[2]}/"
_CALL: CodeType = (lambda function, args, kwargs: function(*args, **kwargs)).__code__
_HANDOVER = 3
"""Frames between a function of PyTorch written in Python and the mode that it asks, at most."""
_CALLERS = 5
"""Frames that a function written in Python counts upward, at most; those in C warn of the frame above."""
_KEPT = 4096
_Call = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class Places:
    """Functions that call from places of the program; made once for each line."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int, int], tuple[CodeType, _Call]] = {}
        """By the code and the globals of the caller, and the line; the code lives as long as its identity is a key."""

    def call(self, frame: FrameType, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`function(*args, **kwargs)` as whoever called it; `frame` is the one above the mode."""
        callers = _callers(function, frame)
        call = (function, args, kwargs)
        for caller in callers[:-1]:
            call = (self._standing(caller), call, {})
        try:
            return self._standing(callers[-1])(*call)
        except BaseException as error:
            # A traceback is that of the program: in there these lines would stand twice.
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
                self._made.clear()  # programs that make code while they run
            there = _CALL.replace(co_filename=code.co_filename, co_firstlineno=line, co_name=NAME)
            made = self._made[key] = (code, FunctionType(there, frame.f_globals))
        return made[1]


def _callers(function: Any, frame: FrameType) -> list[FrameType]:
    """Who called, innermost first: a function written in Python has a frame of its own, from where it asked the mode."""
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
