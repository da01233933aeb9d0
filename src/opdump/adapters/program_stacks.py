"""The lines of the program in call stacks: that of a thread, and those that a framework has kept.

stacks = ProgramStacks(["/usr/lib/python3/site-packages/jax/"])
stacks.running(sys._getframe())                      # innermost first
stacks.of_lines([("train.py", 12, "loss"), ...])     # of a stack of the framework's own
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Final

from opdump.adapters.program_code import is_programs, line_of, runs_programs
from opdump.call_stacks import Frame, Stacks, WalkedStacks
from opdump.interpreter.frames import Frames

Line = tuple[str, int, str]
"""A file, the number of a line, the name of the function."""
Stack = Sequence[Frame]
"""Innermost first."""

_MOST: Final = 10_000
"""Code objects, and stacks of them, that are kept: a program may compile code in each step."""


class ProgramStacks:
    """Reads stacks: the frames outside the framework, opdump and the standard library. Equal ones are one object, by which layouts know them.

    `framework` are the directories of the framework's own files, each with a slash at its end.
    """

    def __init__(self, framework: Iterable[str]) -> None:
        self._programs = _Programs(tuple(framework))
        self._frames: dict[Line, Frame] = {}
        self._stacks = Stacks()
        self._walked = self._new_walked()

    def running(self, frame: FrameType | None) -> Stack:
        """The lines above a frame of a thread, and its own."""
        walked = self._walked
        found = walked.stacks.of(walked.walk(frame, 0)[0])
        if len(walked.stacks) > _MOST or len(walked.codes) > _MOST:
            self._walked = self._new_walked()
        return found

    def _new_walked(self) -> _Walked:
        return _Walked(self._programs, self._frames, self._stacks)

    def of_lines(self, lines: Iterable[Line]) -> Stack:
        """Of a stack, innermost first."""
        return self._stacks.of([_frame(self._frames, line) for line in self.program_lines(lines)])

    def program_lines(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Those of a stack that are the program's."""
        for file, line, function in lines:
            is_mine = self._programs.have(file, function)
            if is_mine is None:
                return
            if is_mine:
                yield file, line, function


def _frame(known: dict[Line, Frame], line: Line) -> Frame:
    """The frame of a line, always the same object."""
    found = known.get(line)
    if found is None:
        found = known.setdefault(line, Frame(*line, linecache.getline(*line[:2]).strip()))
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

    def __init__(self, programs: _Programs, frames: dict[Line, Frame], stacks: Stacks) -> None:
        codes: dict[int, CodeType] = {}

        # Neither refers to what refers to it: the walker is not looked at by the garbage collector.
        def is_mine(code: CodeType) -> bool | None:
            codes[id(code)] = code
            return programs.have(code.co_filename, code.co_name)

        def frame_of(code: int, instruction: int) -> Frame:
            found = codes[code]
            return _frame(frames, (found.co_filename, line_of(found, instruction), found.co_name))

        self.codes = codes
        self.walk = Frames(lambda _: False, is_mine).walk
        self.stacks = WalkedStacks(stacks, frame_of)
