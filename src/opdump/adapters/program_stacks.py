"""The lines of the program in call stacks: that of a thread, and those that a framework has kept.

stacks = ProgramStacks(["/usr/lib/python3/site-packages/jax/"])
stacks.running(sys._getframe())                      # innermost first
stacks.of_lines([("train.py", 12, "loss"), ...])     # of a stack of the framework's own
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from types import CodeType, FrameType

from opdump.adapters.program_code import is_programs, line_of, runs_programs
from opdump.interpreter.frames import Frames
from opdump.records import Frame

Stack = tuple[Frame, ...]
"""Innermost first."""


class ProgramStacks:
    """Reads stacks: the frames outside the framework, opdump and the standard library. Equal ones are one object, by which layouts know them.

    `framework` are the directories of the framework's own files, each with a slash at its end.
    """

    def __init__(self, framework: Iterable[str]) -> None:
        self._framework = tuple(framework)
        self._are_programs: dict[tuple[str, str], bool | None] = {}
        """By the file and the name of a function; None of what runs programs."""
        self._codes: dict[int, CodeType] = {}
        """By their identity, which is part of keys: kept alive."""
        self._walk = Frames(lambda _: False, self._is_code_programs).walk
        self._running: dict[tuple[int, ...], Stack] = {}
        self._frames: dict[tuple[str, int, str], Frame] = {}
        self._stacks: dict[tuple[int, ...], Stack] = {}
        """By the identity of the frames, which are kept."""

    def running(self, frame: FrameType | None) -> Stack:
        """The lines above a frame of a thread, and its own."""
        places = self._walk(frame, 0)[0]
        key = tuple(places)
        found = self._running.get(key)
        if found is None:
            codes = [(self._codes[code], lasti) for code, lasti in zip(places[::2], places[1::2], strict=True)]
            lines = ((code.co_filename, line_of(code, lasti), code.co_name) for code, lasti in codes)
            found = self._running[key] = self.interned([self._frame(*line) for line in lines])
        return found

    def of_lines(self, lines: Iterable[tuple[str, int, str]]) -> Stack:
        """Of a stack, innermost first: files, numbers of lines, names of functions."""
        found = []
        for file, line, function in lines:
            is_mine = self._is_programs(file, function)
            if is_mine is None:
                break
            if is_mine:
                found.append(self._frame(file, line, function))
        return self.interned(found)

    def _is_code_programs(self, code: CodeType) -> bool | None:
        self._codes[id(code)] = code
        return self._is_programs(code.co_filename, code.co_name)

    def _is_programs(self, file: str, function: str) -> bool | None:
        key = (file, function)
        if key not in self._are_programs:
            known = None if runs_programs(file) else is_programs(file, function, self._framework)
            self._are_programs[key] = known
        return self._are_programs[key]

    def _frame(self, file: str, line: int, function: str) -> Frame:
        key = (file, line, function)
        found = self._frames.get(key)
        if found is None:
            found = self._frames[key] = Frame(file, line, function, linecache.getline(file, line).strip())
        return found

    def interned(self, frames: list[Frame]) -> Stack:
        """The stack of these frames."""
        return self._stacks.setdefault(tuple(map(id, frames)), tuple(frames))
