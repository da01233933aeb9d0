"""Sets MindSpore's own `set_dump` flag on Cells that `opdump.set_dump` marked. A compiled graph passes the flag on to each operator,
backward ones too.
"""

from __future__ import annotations

from typing import Any

from mindspore import nn

from opdump.adapters.program_marks import UNMARKED, Mark, ProgramMarks

_FLAG = "dump"


def mark_cells(marks: ProgramMarks) -> None:
    """Set the flag of marked Cells and of the Cells inside. The latest mark of a Cell or of a Cell around it takes effect."""
    cells = [target for target, _ in marks.enabled_targets() if isinstance(target, nn.Cell)]
    for cell in sorted(cells, key=marks.of_module):
        _flag(cell, marks, UNMARKED)


def _flag(cell: Any, marks: ProgramMarks, around: Mark) -> None:
    mark = max(around, marks.of_module(cell))
    cell.add_flags(**{_FLAG: mark.enabled})
    for inner in cell.cells():
        _flag(inner, marks, mark)
    for primitive in getattr(cell, "_primitives", {}).values():
        if primitive and _FLAG in primitive.attrs:
            primitive.add_prim_attr(_FLAG, "true" if mark.enabled else "false")
