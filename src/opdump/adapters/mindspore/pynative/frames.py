"""The lines of the program that lead to an operator."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import mindspore

from opdump.adapters.program_stacks import ProgramStacks, Stack

_STACKS: Final = ProgramStacks([f"{Path(mindspore.__file__).parent}/"])


def program_frames() -> Stack:
    """The program's lines on the stack of this thread, innermost first."""
    return _STACKS.running(sys._getframe(1))
