"""Finds out whether an operator is marked with `set_dump`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

from opdump.adapters.program_marks import UNMARKED, ProgramMarks, key_of


class Marks:
    """The latest mark of the Cells around an operator, and of their classes, takes effect. A marked function selects all operators inside."""

    def __init__(self, program: ProgramMarks) -> None:
        self._program = program
        self._used: set[int] = set()

    def takes(self, cells: Iterable[Any]) -> bool:
        """Whether an operator inside these Cells is selected."""
        found = UNMARKED
        for cell in cells:
            mark = self._program.of_module(cell)
            if mark is not UNMARKED:
                self._used.add(id(cell))
                self._used.update(id(kind) for kind in type(cell).__mro__)
                found = max(found, mark)
        return found.enabled or (bool(self._program.function_names) and self._in_marked_function())

    def _in_marked_function(self) -> bool:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            owners = self._program.owners_of(frame.f_code)
            if owners is not None and (None in owners or _called_on(frame) in owners):
                self._used.add(hash(key_of(frame.f_code)))
                return True
            frame = frame.f_back
        return False

    def unused(self) -> list[str]:
        """Warnings about marked targets in which no operator ran."""
        if not self._program:
            return [
                "set_dump: nothing is marked, and dump_mode 2 dumps only marked operators; call opdump.set_dump(net) in the program"
            ]
        return [
            f"set_dump: no operator ran in {text}, which is marked"
            for target, text in self._program.enabled_targets()
            if (hash(target) if isinstance(target, tuple) else id(target)) not in self._used
        ]


def _called_on(frame: FrameType) -> int:
    """The identity of the first argument of a function."""
    names = frame.f_code.co_varnames
    return id(frame.f_locals.get(names[0])) if names else 0
