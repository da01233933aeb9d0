"""The lines of the program that lead to an operator."""

from __future__ import annotations

import functools
import linecache
import sys
from pathlib import Path
from types import FrameType

import mindspore

from opdump.adapters.program_code import is_programs, runs_programs
from opdump.records import Frame

_MINDSPORE = (f"{Path(mindspore.__file__).parent}/",)


def program_frames() -> tuple[Frame, ...]:
    """The program's lines that are running in this thread, innermost first."""
    found: list[Frame] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        if _runs_programs(file):
            break
        if _is_programs(file, code.co_name):
            found.append(_frame(file, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return tuple(found)


_runs_programs = functools.lru_cache(maxsize=4096)(runs_programs)


@functools.lru_cache(maxsize=4096)
def _is_programs(file: str, function: str) -> bool:
    return is_programs(file, function, _MINDSPORE)


@functools.lru_cache(maxsize=4096)
def _frame(file: str, line: int, function: str) -> Frame:
    return Frame(file, line, function, linecache.getline(file, line).strip())
