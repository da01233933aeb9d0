"""The lines of the program behind an equation: those at which it was traced."""

from __future__ import annotations

import functools
import linecache
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Final

from opdump.adapters.program_code import is_programs, runs_programs
from opdump.records import Frame

LIBRARIES: Final = ("jax", "jaxlib", "flax", "optax", "equinox", "chex", "haiku", "orbax")
"""Packages whose lines are not the program's."""


@functools.cache
def _directories() -> tuple[str, ...]:
    import jax

    home = Path(jax.__file__).parents[1]
    return tuple(f"{home / name}/" for name in LIBRARIES)


@functools.cache
def is_library(file: str) -> bool:
    """Whether a file is part of JAX, or of a library on it."""
    return file.startswith((*_directories(), "<frozen"))


@functools.cache
def is_of_jax(file: str) -> bool:
    """Whether a file is part of JAX itself."""
    return file.startswith(_directories()[:2])


def frames_of(traceback: Any) -> tuple[Frame, ...]:
    """The program's lines of a traceback of JAX, innermost first; none where it has none."""
    found: list[Frame] = []
    for frame in traceback.frames if traceback is not None else ():
        if runs_programs(frame.file_name):
            break
        if is_programs(frame.file_name, frame.function_name, _directories()):
            found.append(_frame(frame.file_name, frame.line_num, frame.function_name))
    return tuple(found)


def program_frames() -> tuple[Frame, ...]:
    """The program's lines that are running in this thread, innermost first."""
    found: list[Frame] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if runs_programs(code.co_filename):
            break
        if is_programs(code.co_filename, code.co_name, _directories()):
            found.append(_frame(code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return _same(tuple(found))


@functools.lru_cache(maxsize=4096)
def _same(stack: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """One object for each stack: who files it knows it again by its identity."""
    return stack


@functools.lru_cache(maxsize=4096)
def _frame(file: str, line: int, function: str) -> Frame:
    return Frame(file, line, function, linecache.getline(file, line).strip())


def file_of_function(source: str | None) -> str:
    """The file in `train_step at /home/me/train.py:11`, as JAX tells where a function is written; empty where it does not say."""
    return (source or "").rpartition(" at ")[2].rpartition(":")[0]
