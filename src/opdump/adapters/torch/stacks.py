"""The lines of the user's program that lead to an operator."""

from __future__ import annotations

import linecache
import sysconfig
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from opdump.records import Frame

_PACKAGE = Path(__file__).parents[2]
_OPDUMP = f"{_PACKAGE}/"
_FOREIGN = (f"{Path(torch.__file__).parent}/", _OPDUMP)
_LAUNCHER = f"{_PACKAGE / 'commands'}/"
"""What runs a program under capture: the frames above it are the command line's, not the program's."""
_STDLIB = tuple(f"{Path(sysconfig.get_path(name))}/" for name in ("stdlib", "platstdlib"))


class StackReader:
    """Reads and interns call stacks: the frames outside torch, opdump and the standard library, innermost first."""

    def __init__(self) -> None:
        self._mine: dict[CodeType, bool] = {}
        self._frames: dict[tuple[CodeType, int], Frame] = {}
        self._stacks: dict[tuple[Any, ...], tuple[Frame, ...]] = {}

    def read(self, frame: FrameType | None) -> tuple[tuple[Frame, ...], object]:
        """The stack above `frame`, and the place of the call: the innermost line outside opdump, torch's own included.

        The place tells apart operators of one line of the user that torch runs from several lines of its own, such as
        those of `optimizer.step()`.
        """
        while frame is not None and frame.f_code.co_filename.startswith(_OPDUMP):
            frame = frame.f_back
        place = None if frame is None else (frame.f_code, frame.f_lasti)
        mine = self._mine
        key: list[Any] = []
        frames: list[FrameType] = []
        while frame is not None:
            code = frame.f_code
            users = mine.get(code)
            if users is None:
                if code.co_filename.startswith(_LAUNCHER):
                    break
                users = mine[code] = is_users(code)
            if users:
                key.append(code)
                key.append(frame.f_lasti)
                frames.append(frame)
            frame = frame.f_back
        whole = tuple(key)
        stack = self._stacks.get(whole)
        if stack is None:
            stack = self._stacks[whole] = tuple(self._frame(frame) for frame in frames)
        return stack, (place, id(stack[0]) if stack else 0)

    def _frame(self, frame: FrameType) -> Frame:
        # Interned: `naming` tells lines apart by the identity of their frame.
        key = (frame.f_code, frame.f_lasti)
        found = self._frames.get(key)
        if found is None:
            found = self._frames[key] = _frame(frame)
        return found

    @staticmethod
    def codes(frame: FrameType | None) -> set[CodeType]:
        """The code objects of all running functions above `frame`."""
        found = set()
        while frame is not None:
            found.add(frame.f_code)
            frame = frame.f_back
        return found


def is_users(code: CodeType) -> bool:
    """Whether a line of this function belongs to the program, not to the machinery that runs it."""
    file = code.co_filename
    if file.startswith("<frozen") or file == "<string>" and code.co_name == "<module>":
        return False
    if file.startswith(_FOREIGN):
        return False
    return not (file.startswith(_STDLIB) and "site-packages" not in file)


def _frame(frame: FrameType) -> Frame:
    code = frame.f_code
    line = frame.f_lineno
    return Frame(code.co_filename, line, code.co_name, linecache.getline(code.co_filename, line).strip())
