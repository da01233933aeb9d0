"""Finds the lines of the program in call stacks: the stack of a thread, or one that a framework has kept.

stacks = ProgramStacks(["/usr/lib/python3/site-packages/jax/"])
stacks.running(sys._getframe())                      # innermost first
stacks.of_lines([("train.py", 12, "loss"), ...])     # of a stack of the framework's own
"""

from __future__ import annotations

import linecache
import os
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

from opdump.call_stacks import Frame, Stacks, WalkedStacks
from opdump.interpreter.frames import Frames

# The files and functions whose lines belong to the program.

_PACKAGE: Final = Path(__file__).parents[1]
OPDUMP: Final = f"{_PACKAGE}/"
"""The directory of opdump's own files."""
_LAUNCHER: Final = f"{_PACKAGE / 'commands'}/"
"""The directory of the code that runs a program under capture. Frames above it belong to the command line."""
_CELL_RUNNER: Final = os.path.join("IPython", "core", "interactiveshell.py")
"""The file that runs the cells of a notebook."""
_STDLIB: Final = tuple(f"{Path(sysconfig.get_path(name))}/" for name in ("stdlib", "platstdlib"))


def runs_programs(file: str) -> bool:
    """Whether a frame of this file runs the program. Neither it nor the frames above it belong to the program."""
    return file.startswith(_LAUNCHER) or file.endswith(_CELL_RUNNER)


def is_programs(file: str, function: str, framework: tuple[str, ...]) -> bool:
    """Whether a line of this function belongs to the program. `framework` are directories, each with a trailing slash."""
    if file.startswith("<frozen") or (file == "<string>" and function == "<module>"):
        return False
    if file.startswith(OPDUMP) or file.startswith(framework):
        return False
    # Installed packages are in a subdirectory of the standard library.
    return not (file.startswith(_STDLIB) and "site-packages" not in file)


def line_of(code: CodeType, lasti: int) -> int:
    """The line of an instruction; the function's first line if the line table has none."""
    line = None
    for start, end, number in code.co_lines():
        if start <= lasti < end:
            line = number
    return line if line is not None else code.co_firstlineno


# The program's stacks.

Line = tuple[str, int, str]
"""File, line number, function name."""
Stack = Sequence[Frame]
"""Innermost first."""

_MOST: Final = 10_000
"""Maximum number of code objects, and of stacks, that are kept. A program may compile new code in each step."""


class ProgramStacks:
    """Reads stacks without the frames of the framework, opdump and the standard library.

    Equal stacks are the same object, because layouts recognise them by identity. `framework` are the directories of the framework's files,
    each with a trailing slash.
    """

    def __init__(self, framework: Iterable[str]) -> None:
        self._programs = _Programs(tuple(framework))
        self._frames: dict[Line, Frame] = {}
        self._stacks = Stacks()
        self._walked = self._new_walked()

    def running(self, frame: FrameType | None) -> Stack:
        """The program's stack at a frame of a thread, including the frame itself."""
        walked = self._walked
        found = walked.stacks.of(walked.walk(frame, 0)[0])
        if len(walked.stacks) > _MOST or len(walked.codes) > _MOST:
            self._walked = self._new_walked()
        return found

    def _new_walked(self) -> _Walked:
        return _Walked(self._programs, self._frames, self._stacks)

    def of_lines(self, lines: Iterable[Line]) -> Stack:
        """The program's stack in these lines, which are innermost first."""
        return self._stacks.of([_frame(self._frames, line) for line in self.program_lines(lines)])

    def program_lines(self, lines: Iterable[Line]) -> Iterator[Line]:
        """The lines that belong to the program; they end at what runs the program, such as the command line."""
        for file, line, function in lines:
            is_mine = self._programs.have(file, function)
            if is_mine is None:
                return
            if is_mine:
                yield file, line, function


def _frame(known: dict[Line, Frame], line: Line) -> Frame:
    """The frame of a line; always the same object."""
    found = known.get(line)
    if found is None:
        found = known.setdefault(line, Frame(*line, linecache.getline(*line[:2]).strip()))
    return found


class _Programs:
    """Which functions belong to the program, by file and name."""

    def __init__(self, framework: tuple[str, ...]) -> None:
        self._framework = framework
        self._known: dict[tuple[str, str], bool | None] = {}

    def have(self, file: str, function: str) -> bool | None:
        """Whether a function belongs to the program; None if it runs programs."""
        key = (file, function)
        if key not in self._known:
            known = None if runs_programs(file) else is_programs(file, function, self._framework)
            self._known[key] = known
        return self._known[key]


class _Walked:
    """Stacks by code objects. These are identified by identity, and therefore kept alive."""

    def __init__(self, programs: _Programs, frames: dict[Line, Frame], stacks: Stacks) -> None:
        codes: dict[int, CodeType] = {}

        # The garbage collector does not traverse the native walker, so these functions must not refer to it, nor to `self`.
        def is_mine(code: CodeType) -> bool | None:
            codes[id(code)] = code
            return programs.have(code.co_filename, code.co_name)

        def frame_of(code: int, instruction: int) -> Frame:
            found = codes[code]
            return _frame(frames, (found.co_filename, line_of(found, instruction), found.co_name))

        self.codes = codes
        self.walk = Frames(lambda _: False, is_mine).walk
        self.stacks = WalkedStacks(stacks, frame_of)
