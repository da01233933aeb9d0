"""Walks the frames of a call stack, in compiled code or in Python.

In Python, each frame costs 1 µs if there is an audit hook, because reading its code and the code's identity are audit events. `sys._getframe` is
another such event; `calling_frame` is not.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import _getframe
from types import CodeType, FrameType
from typing import Any

from opdump.interpreter.compiled import compiled

Says = Callable[[CodeType], bool | None]


class PythonFrames:
    """The Python twin of the compiled `Frames`. Two functions of code objects decide which frames are returned.

    `is_ours` and `is_mine` are called once for each code object, which is kept alive.
    """

    def __init__(self, is_ours: Says, is_mine: Says) -> None:
        self._ours, self._mine = _Question(is_ours), _Question(is_mine)

    def caller(self, frame: FrameType | None) -> FrameType | None:
        """Return the innermost frame, starting with this one, that is not ours, or None."""
        answer = self._ours.answer
        while frame is not None and answer(frame.f_code) is not False:
            frame = frame.f_back
        return frame

    def place(self, frame: FrameType) -> tuple[int, int]:
        """Return the identity of the frame's code, and its instruction."""
        return id(frame.f_code), frame.f_lasti

    def walk(self, frame: FrameType | None, boundary: int) -> tuple[list[int], FrameType | None]:
        """Return the identity of the code and the instruction of each frame that is mine, alternating, innermost first.

        The walk ends at the frame with the identity `boundary`, unless it is mine, and returns that frame. It also ends if `is_mine` returns None.
        """
        found: list[int] = []
        answer = self._mine.answer
        while frame is not None:
            code = frame.f_code
            is_mine = answer(code)
            if is_mine is None:
                break
            if is_mine:
                found += (id(code), frame.f_lasti)
            elif boundary and id(frame) == boundary:
                return found, frame
            frame = frame.f_back
        return found, None

    def below(self, frame: FrameType | None, name: str) -> list[int]:
        """Return the same for the frames below the innermost function of that name, or for all frames if there is none."""
        found: list[int] = []
        while frame is not None and frame.f_code.co_name != name:
            code = frame.f_code
            if self._mine.answer(code):
                found += (id(code), frame.f_lasti)
            frame = frame.f_back
        return found


class _Question:
    def __init__(self, ask: Says) -> None:
        self._ask = ask
        # By identity, because hashing a code object means hashing all of its instructions.
        self._known: dict[int, tuple[CodeType, bool | None]] = {}

    def answer(self, code: CodeType) -> bool | None:
        known = self._known.get(id(code))
        if known is None:
            known = self._known[id(code)] = code, self._ask(code)
        return known[1]


def _calling_frame(depth: int) -> FrameType:
    """Return `sys._getframe(depth)` of the calling function."""
    return _getframe(depth + 1)


_NATIVE: Any = compiled()
Frames: type[PythonFrames] = PythonFrames if _NATIVE is None else _NATIVE.Frames
calling_frame: Callable[[int], FrameType] = _calling_frame if _NATIVE is None else _NATIVE.calling_frame
