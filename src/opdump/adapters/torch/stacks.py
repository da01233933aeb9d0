"""Finds the lines of the user's program that led to an operator."""

from __future__ import annotations

import dis
import linecache
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType

import torch

from opdump.adapters.program_stacks import OPDUMP, is_programs, line_of, runs_programs
from opdump.adapters.torch.private_names import RUN_BACKWARD
from opdump.adapters.torch.scopes import Running
from opdump.call_stacks import Frame, Stack, Stacks, WalkedStacks
from opdump.interpreter.frames import Frames

# Finds the lines of the program.

_TORCH = (f"{Path(torch.__file__).parent}/",)
_PRECALL: int | None = dis.opmap.get("PRECALL")
_PRECALL_BYTES = 4
"""The size of the instruction with its cache."""
_HAS_ENGINE_FRAME = hasattr(torch.autograd, RUN_BACKWARD)
"""Whether a single function calls the autograd engine; older releases call it from several."""
_CHECKPOINT_FILE = str(Path(torch.__file__).parent / "utils" / "checkpoint.py")


class StackReader:
    """Reads and interns call stacks: the frames outside torch, opdump and the standard library, innermost first."""

    def __init__(self) -> None:
        codes: dict[int, CodeType] = {}

        def is_ours(code: CodeType) -> bool:
            codes[id(code)] = code
            return code.co_filename.startswith(OPDUMP)

        def is_mine(code: CodeType) -> bool | None:
            codes[id(code)] = code
            return None if runs_programs(code.co_filename) else is_users(code)

        self.is_ours, self.is_mine = is_ours, is_mine
        self._walk_of = Frames(is_ours, is_mine)
        self._codes = codes
        """Code objects by identity, which is part of keys; kept alive so that identities are not reused."""
        self._frames: dict[tuple[int, int], Frame] = {}
        self._walked = WalkedStacks(Stacks(), self._frame)
        self._canonical: dict[tuple[int, int], tuple[int, int]] = {}

    def read(self, frame: FrameType | None, call: Running | None = None) -> tuple[Sequence[Frame], object]:
        """The stack above `frame`, and the place of the call: the innermost line outside opdump, which may be torch's own.

        The place distinguishes operators that torch runs from several of its own lines for one line of the user, such as
        `optimizer.step()`. `call` is the innermost running call of a module or an optimizer in this thread. Its callers do
        not change while it runs, so they are read once.
        """
        frame = self._walk_of.caller(frame)
        if frame is None:
            return (), None
        place = self._walk_of.place(frame)
        if _PRECALL is not None:
            place = self._canonical.get(place) or self._canonised(*place)
        stack = self._walk(frame, call)
        return stack, (*place, id(stack.frame) if isinstance(stack, Stack) else 0)

    def inside_engine(self, frame: FrameType | None, stack: Sequence[Frame]) -> Sequence[Frame]:
        """`stack`, preceded by the program's lines that autograd's engine runs: a backward written in Python, a hook.

        These lines end at the innermost call of the engine. If the engine itself runs the operator, there are none.
        """
        frame = self._walk_of.caller(frame)
        if frame is None or not _HAS_ENGINE_FRAME:
            return stack
        found = self._walk_of.below(frame, RUN_BACKWARD)
        return self._walked.of(found, stack) if found else stack

    def _walk(self, frame: FrameType | None, call: Running | None) -> Sequence[Frame]:
        callers: Sequence[Frame] = ()
        found, end = self._walk_of.walk(frame, 0 if call is None else call.frame)
        if end is not None and call is not None:
            callers = self.callers_of(call, end)
        return self._walked.of(found, callers)

    def callers_of(self, call: Running, frame: FrameType) -> Sequence[Frame]:
        """The lines of the program that lead to a running call with the given frame."""
        if call.callers is None:
            call.callers = self._walk(frame.f_back, call.outer)
        return call.callers

    def _canonised(self, code_id: int, lasti: int) -> tuple[int, int]:
        place = self._canonical[(code_id, lasti)] = (code_id, _call_of(self._codes[code_id], lasti))
        return place

    def _frame(self, code_id: int, lasti: int) -> Frame:
        # Interned: `naming` compares lines by the identity of their frame.
        code = self._codes[code_id]
        lasti = _call_of(code, lasti)
        key = (code_id, lasti)
        found = self._frames.get(key)
        if found is None:
            line = line_of(code, lasti)
            text = linecache.getline(code.co_filename, line).strip()
            found = self._frames[key] = Frame(code.co_filename, line, code.co_name, text)
        return found


def is_recomputing(frame: FrameType | None) -> bool:
    """Whether activation checkpointing is running a forward again inside the backward."""
    while frame is not None:
        if frame.f_code.co_filename == _CHECKPOINT_FILE:
            return True
        frame = frame.f_back
    return False


def is_users(code: CodeType) -> bool:
    """Whether a line of this function belongs to the program, not to the machinery that runs it."""
    return is_programs(code.co_filename, code.co_name, _TORCH)


def _call_of(code: CodeType, lasti: int) -> int:
    """The offset of the call's second instruction, if `lasti` is at the first: Python 3.11 uses two per call.

    Once a line has run a few times, the interpreter may do the whole call of a builtin (`sum(losses)`) in the first
    instruction. Without this, the line would then become a different place.
    """
    if _PRECALL is not None and 0 <= lasti < len(code.co_code) and code.co_code[lasti] == _PRECALL:
        return lasti + _PRECALL_BYTES
    return lasti
