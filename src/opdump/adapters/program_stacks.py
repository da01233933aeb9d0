"""The lines of the program in call stacks: that of a thread, and those that a framework has kept.

stacks = ProgramStacks(["/usr/lib/python3/site-packages/jax/"])
stacks.running(sys._getframe())                      # innermost first
stacks.of_lines([("train.py", 12, "loss"), ...])     # of a stack of the framework's own
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType
from typing import Final

from opdump.adapters.program_code import is_programs, line_of, runs_programs
from opdump.interpreter.frames import Frames
from opdump.records import Frame

Line = tuple[str, int, str]
"""A file, the number of a line, the name of the function."""
Stack = tuple[Frame, ...]
"""Innermost first."""

_MOST: Final = 10_000
"""Code objects, and stacks of them, that are kept: a program may compile code in each step."""


class ProgramStacks:
    """Reads stacks: the frames outside the framework, opdump and the standard library. Equal ones are one object, by which layouts know them.

    `framework` are the directories of the framework's own files, each with a slash at its end.
    """

    def __init__(self, framework: Iterable[str]) -> None:
        self._programs = _Programs(tuple(framework))
        self._walked = _Walked(self._programs)
        self._frames: dict[Line, Frame] = {}
        self._stacks: dict[tuple[int, ...], Stack] = {}
        """By the identity of the frames, which are kept."""

    def running(self, frame: FrameType | None) -> Stack:
        """The lines above a frame of a thread, and its own."""
        walked = self._walked
        places = walked.walk(frame, 0)[0]
        key = tuple(places)
        found = walked.stacks.get(key)
        if found is None:
            codes = [(walked.codes[code], lasti) for code, lasti in zip(places[::2], places[1::2], strict=True)]
            found = self._interned((code.co_filename, line_of(code, lasti), code.co_name) for code, lasti in codes)
            walked.stacks[key] = found
            if len(walked.stacks) > _MOST or len(walked.codes) > _MOST:
                self._walked = _Walked(self._programs)
        return found

    def of_lines(self, lines: Iterable[Line]) -> Stack:
        """Of a stack, innermost first."""
        return self._interned(self.program_lines(lines))

    def program_lines(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Those of a stack that are the program's."""
        for file, line, function in lines:
            is_mine = self._programs.have(file, function)
            if is_mine is None:
                return
            if is_mine:
                yield file, line, function

    def _interned(self, lines: Iterable[Line]) -> Stack:
        frames = [*map(self._frame, lines)]
        return self._stacks.setdefault(tuple(map(id, frames)), tuple(frames))

    def _frame(self, line: Line) -> Frame:
        found = self._frames.get(line)
        if found is None:
            found = self._frames.setdefault(line, Frame(*line, linecache.getline(*line[:2]).strip()))
        return found


class _Programs:
    """Which functions are the program's, by their files and names."""

    def __init__(self, framework: tuple[str, ...]) -> None:
        self._framework = framework
        self._known: dict[tuple[str, str], bool | None] = {}

    def have(self, file: str, function: str) -> bool | None:
        """None of what runs programs."""
        key = (file, function)
        if key not in self._known:
            known = None if runs_programs(file) else is_programs(file, function, self._framework)
            self._known[key] = known
        return self._known[key]


class _Walked:
    """Stacks of code objects, which are known by their identity and so are kept alive."""

    def __init__(self, programs: _Programs) -> None:
        codes: dict[int, CodeType] = {}

        # It refers to nothing that refers to the walker: that is not looked at by the garbage collector.
        def is_mine(code: CodeType) -> bool | None:
            codes[id(code)] = code
            return programs.have(code.co_filename, code.co_name)

        self.codes = codes
        self.walk = Frames(lambda _: False, is_mine).walk
        self.stacks: dict[tuple[int, ...], Stack] = {}
