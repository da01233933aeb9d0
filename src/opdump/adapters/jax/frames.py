"""The lines of the program where an equation was traced."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any, Final

from opdump.adapters.program_stacks import ProgramStacks, Stack

LIBRARIES: Final = ("jax", "jaxlib", "flax", "optax", "equinox", "chex", "haiku", "orbax")
"""Packages whose lines do not belong to the program."""


@functools.cache
def _directories() -> tuple[str, ...]:
    import jax

    home = Path(jax.__file__).parents[1]
    return tuple(f"{home / name}/" for name in LIBRARIES)


@functools.cache
def is_library(file: str) -> bool:
    """Whether a file is part of JAX or of a library on JAX."""
    return file.startswith((*_directories(), "<frozen"))


@functools.cache
def is_of_jax(file: str) -> bool:
    """Whether a file is part of JAX itself: `jax` or `jaxlib`, the first two of LIBRARIES."""
    return file.startswith(_directories()[:2])


def frames_of(traceback: Any) -> Stack:
    """The program's lines in a traceback of JAX, innermost first; empty if there is no traceback."""
    frames = () if traceback is None else traceback.frames
    return _stacks().of_lines((frame.file_name, frame.line_num, frame.function_name) for frame in frames)


def program_frames() -> Stack:
    """The program's lines on the stack of this thread, innermost first."""
    return _stacks().running(sys._getframe(1))


@functools.cache
def _stacks() -> ProgramStacks:
    return ProgramStacks(_directories())


def file_of_function(source: str | None) -> str:
    """The file in `train_step at /home/me/train.py:11`, JAX's description of a function; empty if there is none."""
    return (source or "").rpartition(" at ")[2].rpartition(":")[0]
