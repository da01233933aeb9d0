"""Finds out which lines of a call stack belong to the program."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from types import CodeType
from typing import Final

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
