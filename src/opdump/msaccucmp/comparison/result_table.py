"""The table of a comparison, `result_<time>.csv`:

Index,OpType,NPUDump,DataType,Address,GroundTruth,DataType,TensorIndex,Shape,CosineSimilarity,...,CompareFailReason
1,Conv2D,conv1,float16,0,"conv1,relu1",float32,conv1:output:0,"[1,18,6,6]",1.000000,...,
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from opdump.msaccucmp.comparison.algorithms import NOT_A_NUMBER
from opdump.msaccucmp.exit_codes import AbortError, CommandError, ExitCode, log
from opdump.msaccucmp.output_folder import OutputFolder

MISSING: Final = "*"
"""The name of a missing counterpart."""
_FORMULA_SIGNS: Final = ("=", "+", "-", "@", "%")


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table."""

    algorithms: tuple[str, ...]
    with_sequence: bool = False
    with_golden_address: bool = False
    with_overflow: bool = False

    @property
    def names(self) -> list[str]:
        return [
            "Index",
            *(["OpSequence"] if self.with_sequence else []),
            *("OpType", "NPUDump", "DataType", "Address", "GroundTruth", "DataType"),
            *(["Address"] if self.with_golden_address else []),
            *("TensorIndex", "Shape"),
            *(["OverFlow"] if self.with_overflow else []),
            *self.algorithms,
            "CompareFailReason",
        ]


@dataclass(frozen=True, slots=True)
class Row:
    """One tensor, or an operator that has none to compare; unknown values are NaN.

    `overflow` is None if the original omits the cell, which shifts all following ones one to the left.
    """

    index: int
    op_type: str
    mine: str
    golden: str
    sequence: int = 0
    my_type: str = NOT_A_NUMBER
    my_address: str = NOT_A_NUMBER
    golden_type: str = NOT_A_NUMBER
    golden_address: str = NOT_A_NUMBER
    tensor: str = NOT_A_NUMBER
    shape: str = NOT_A_NUMBER
    overflow: str | None = NOT_A_NUMBER
    results: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    def cells(self, columns: Columns) -> list[str]:
        results = self.results or (NOT_A_NUMBER,) * len(columns.algorithms)
        return [
            str(self.index),
            *([str(self.sequence)] if columns.with_sequence else []),
            *(self.op_type, self.mine, self.my_type, self.my_address, self.golden, self.golden_type),
            *([self.golden_address] if columns.with_golden_address else []),
            *(self.tensor, self.shape),
            *([self.overflow] if columns.with_overflow and self.overflow is not None else []),
            *results,
            ",".join(reason for reason in self.reasons if reason),
        ]


def shape_cell(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


def write_table(folder: OutputFolder, kind: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write `<kind>_<time>.csv`; returns its path. A cell that a spreadsheet would execute ends the table, and raises AbortError."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(header)
    problem: AbortError | None = None
    for cells in rows:
        dangerous = [cell for cell in cells if is_formula(cell)]
        if dangerous:
            problem = AbortError(f"{dangerous[0]!r} begins as a formula of a spreadsheet and is not written to a table")
            break
        writer.writerow(cells)
    name = time.strftime(f"{kind}_%Y%m%d%H%M%S.csv")
    try:
        path = folder.write(name, [text.getvalue().encode("utf-8", "surrogateescape")])
    except OSError as error:
        raise CommandError(ExitCode.CANNOT_OPEN, f"{name} cannot be written ({error.strerror})") from error
    if problem is not None:
        raise problem
    log("INFO", f"the table is in {path}")
    return path


def is_formula(cell: str) -> bool:
    """Whether a spreadsheet would take the cell for a formula: it begins like one and is not a number."""
    if not cell.startswith(_FORMULA_SIGNS):
        return False
    try:
        float(cell)
    except ValueError:
        return True
    return False


# A tensor or an operator that cannot be compared: its row has the reason, and the others continue.


class IncomparableError(CommandError):
    """The text is that of the original's table, which has none for some failures; `message` is for the log."""

    def __init__(self, code: ExitCode, reason: str, message: str = "") -> None:
        super().__init__(code, message or reason)
        self.reason = reason


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape in the form of the reasons: `(2, 3)`, `(6)`, `()`."""
    return f"({', '.join(map(str, shape))})"
