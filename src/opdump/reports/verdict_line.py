"""The verdict of a run in one line: the first NaN, infinity, overflow or failure, or that there was none.

opdump: first infinity: step 2, aten::log at train.py:11, 3 of 32 elements of output.0 (Default/log-op21)
opdump: no NaN, no infinity in 5,610 tensors
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from opdump import amounts
from opdump.plan import MODES
from opdump.verdict import Verdict

if TYPE_CHECKING:
    from opdump.capturing.report import CaptureReport

_FIRST: Final = {"nan": "NaN", "infinity": "infinity", "overflow": "overflow", "failure": "failure"}
_FILE_OF_A_CELL: Final = re.compile(r"ipykernel_\d+[/\\]\d+\.py$")


def verdict_line(report: CaptureReport, *, rank: int | None = None) -> str:
    """The verdict on a run and its child processes; empty if nothing was checked. `rank` is named if several ran."""
    where = "opdump" if rank is None else f"opdump rank {rank}"
    place, verdict = first_of(report)
    if verdict.kind in _FIRST:
        return f"{where}: {place}first {_FIRST[verdict.kind]}: {_found(verdict)}"
    executed = report.executed + sum(child.executed for child in report.children)
    if verdict.kind == "not looked" or not executed:
        return ""
    return f"{where}: {_nothing(verdict, executed)}"


def first_of(report: CaptureReport) -> tuple[str, Verdict]:
    """The verdict with the earliest step among those of a process and its children, preceded by the rank of the child."""
    all_of = [("", report.verdict)]
    all_of += [(f"rank {child.rank_id}, ", child.verdict) for child in report.children if child.verdict is not None]
    found = [(place, verdict) for place, verdict in all_of if verdict.kind in _FIRST]
    if found:
        return min(found, key=lambda each: each[1].step)
    clean = [verdict for _, verdict in all_of if verdict.kind == "none"]
    if not clean:
        return "", report.verdict
    meant = next((verdict.how for verdict in clean if verdict.how), "")
    tensors, not_looked = (sum(each) for each in zip(*((one.tensors, one.not_looked) for one in clean), strict=True))
    return "", Verdict(kind="none", mode=clean[0].mode, how=meant, tensors=tensors, not_looked=not_looked)


def _found(verdict: Verdict) -> str:
    line = f" at {_place(verdict)}" if verdict.file else ""
    how = f", {verdict.how}" if verdict.how else ""
    return f"step {verdict.step}, {verdict.op_type}{line}{how} ({verdict.op_name})"


def _place(verdict: Verdict) -> str:
    """`train.py:11`. Jupyter names the files of its cells by numbers that it does not show, so only the line is given."""
    if _FILE_OF_A_CELL.search(verdict.file):
        return f"line {verdict.line} of a cell"
    return f"{os.path.basename(verdict.file)}:{verdict.line}"


def _nothing(verdict: Verdict, executed: int) -> str:
    mode = MODES[verdict.mode]
    if mode.detects_overflow:
        return f"no overflow in {amounts.count(executed, 'operator')}"
    if mode.failures_only:
        return mode.nothing_found
    meant = f" but what {verdict.how} writes into a mask" if verdict.how else ""
    unknown = f"; {amounts.count(verdict.not_looked, 'complex tensor')} not checked" if verdict.not_looked else ""
    return f"no NaN, no infinity{meant} in {amounts.count(verdict.tensors, 'tensor')}{unknown}"
