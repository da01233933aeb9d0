"""The lines at the end of a run: what ran, what was captured, what was skipped for which reason, and the verdict.

opdump: first infinity: step 2, aten::log at train.py:11, 3 of 32 elements of output.0 (Default/log-op21)
opdump: 2,412 operators ran: 1,830 captured, 582 skipped (540 view, 42 metadata); 5,610 tensors in 5,622 files,
48.1 MB, steps 0-2, 3.20 s; next: opdump show /tmp/dump
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from opdump import amounts
from opdump.degradation import told
from opdump.plan import MODES
from opdump.verdict import Verdict

if TYPE_CHECKING:
    from opdump.capturing.children import ChildReport
    from opdump.capturing.report import CaptureReport


def completeness_line(report: CaptureReport, *, rank: int | None = None) -> str:
    """The outcome of a run in one line. `rank` is named if several processes ran."""
    where = "opdump" if rank is None else f"opdump rank {rank}"
    children = _of_children(report.children)
    return f"{where}: {_of_empty_capture(report, children) or _counts(report, children)}"


def _of_empty_capture(report: CaptureReport, children: str) -> str:
    """What ran and why it left no data; empty if the counts of the capture say that."""
    if report.executed == 0 and children:
        return f"no operator ran in this process; {children}; next: opdump show {shlex.quote(str(report.path))}"
    if report.executed == 0 and report.failure:
        return "nothing was dumped"
    if report.nothing is not None and (report.executed == 0 or report.nothing.is_gap or report.is_dropped):
        ran = f"{amounts.count(report.executed, 'operator')} ran, and nothing" if report.executed else "nothing"
        return f"{ran} was captured: {report.nothing.reason}"
    return ""


def _counts(report: CaptureReport, children: str) -> str:
    skipped = f", {sum(report.skipped.values()):,} skipped ({_by_reason(report.skipped)})" if report.skipped else ""
    outcome = f": {report.captured:,} captured{skipped}"
    tensors_skipped = dict(report.tensors_skipped)
    mode = MODES[report.verdict.mode]
    if mode.watches:  # the records are not of the operators that ran, but of the contents of watched outputs after them
        outcome = f", watched outputs were read {amounts.count(report.captured, 'time')}"
        tensors_skipped.pop(mode.dropped, None)
    left_out = f" ({_by_reason(tensors_skipped)} left out)" if tensors_skipped else ""
    size = f"{amounts.size(report.bytes)}, {amounts.steps(report.steps)}, {amounts.seconds(report.seconds)}"
    parts = [
        f"{amounts.count(report.executed, 'operator')} ran{outcome}",
        f"{amounts.count(report.tensors, 'tensor')}{left_out} in {amounts.count(report.files, 'file')}, {size}",
        f"capture took {report.capture_time}" if report.capture_time else "",
        told(report.degraded) if report.degraded else "",
        f"written for {', '.join(report.fired)}" if report.fired else "",
        children,
        f"next: opdump show {shlex.quote(str(report.path))}",
    ]
    return "; ".join(filter(None, parts))


def failure_line(report: CaptureReport, *, with_cause: bool = True) -> str:
    """Why the dump is incomplete, unless that was reported already, and how many errors there were."""
    operators = report.skipped.get("not written", 0)
    lost = [amounts.count(operators, "operator")] if operators else []
    lost += [amounts.count(report.files_lost, "file")] if report.files_lost else []
    told = f" ({' and '.join(lost)} lost)" if lost else ""
    cause = f": {report.failure}" if with_cause else ""
    return f"opdump: error: the dump is incomplete{told}{cause}"


def _of_children(children: Sequence[ChildReport]) -> str:
    """`2 child processes (ranks 0, 1): 280 operators ran: 140 captured, 140 skipped in 388 files, 300 kB`; empty if none has
    data.
    """
    told = [child for child in children if child.left_data]
    if not told:
        return ""
    processes = "1 child process" if len(told) == 1 else f"{len(told)} child processes"
    ranks = ", ".join(str(child.rank_id) for child in told[:8]) + (", ..." if len(told) > 8 else "")
    executed = amounts.count(sum(child.executed for child in told), "operator")
    skipped = sum(sum(child.skipped.values()) for child in told)
    return (
        f"{processes} ({'rank' if len(told) == 1 else 'ranks'} {ranks}): {executed} ran: "
        f"{sum(child.captured for child in told):,} captured, {skipped:,} skipped; "
        f"{amounts.count(sum(child.files for child in told), 'file')}, {amounts.size(sum(child.bytes for child in told))}"
    )


def _by_reason(skipped: Mapping[str, int]) -> str:
    by_count = sorted(skipped.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{number:,} {reason}" for reason, number in by_count)


def completeness_json(report: CaptureReport, *, rank: int | None = None) -> str:
    """The same as one line of JSON."""
    return json.dumps(
        {
            "rank": rank or 0,
            "executed": report.executed,
            "captured": report.captured,
            "skipped": dict(report.skipped),
            "tensors": report.tensors,
            "tensors_skipped": dict(report.tensors_skipped),
            "files": report.files,
            "bytes": report.bytes,
            "steps": list(report.steps),
            "path": str(report.path),
            "seconds": round(report.seconds, 3),
            "warnings": list(report.warnings),
            "reason": "" if report.nothing is None else report.nothing.reason,
            "failure": report.failure,
            "fired": list(report.fired),
            "capture_seconds": None if report.capture_seconds is None else round(report.capture_seconds, 3),
            "overhead": None if report.overhead is None else round(report.overhead, 4),
            "degraded": [each.as_json() for each in report.degraded],
            "files_lost": report.files_lost,
            "verdict": report.verdict.as_json(),
            "checked": _checked(report),
            "children": [child.as_json() for child in report.children],
        }
    )


def _checked(report: CaptureReport) -> dict[str, Any] | None:
    if report.checked is None:
        return None
    from opdump.reports.findings import checked_json  # imports the table printer, which most runs do not need

    return checked_json(report.checked)


# The verdict of a run in one line: the first NaN, infinity, overflow or failure, or that there was none.

_FIRST: Final = {"nan": "NaN", "infinity": "infinity", "overflow": "overflow", "failure": "failure"}
_FILE_OF_A_CELL: Final = re.compile(r"ipykernel_\d+[/\\]\d+\.py$")


def verdict_line(report: CaptureReport, *, rank: int | None = None) -> str:
    """The verdict on a run and its child processes; empty if nothing was checked. `rank` is named if several ran."""
    where = "opdump" if rank is None else f"opdump rank {rank}"
    place, verdict = first_of(report)
    if verdict.kind in _FIRST:
        return f"{where}: {place}first {_FIRST[verdict.kind]}: {_found(verdict)}"
    if verdict.kind == "not looked" or not report.executed + sum(child.executed for child in report.children):
        return ""
    skipped = sum((Counter(child.skipped) for child in report.children), Counter(report.skipped))
    return f"{where}: {_nothing(verdict, skipped)}"


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


def _nothing(verdict: Verdict, skipped: Mapping[str, int]) -> str:
    mode = MODES[verdict.mode]
    if mode.detects_overflow:
        # Other operators that ran were not judged: views, and those that ran after the dump had failed.
        return f"no overflow in {amounts.count(skipped.get(mode.dropped, 0), 'operator')}"
    if mode.failures_only:
        return mode.nothing_found
    meant = f" (outside the mask that {verdict.how} writes)" if verdict.how else ""
    unknown = f"; {amounts.count(verdict.not_looked, 'complex tensor')} not checked" if verdict.not_looked else ""
    return f"no NaN, no infinity{meant} in {amounts.count(verdict.tensors, 'tensor')}{unknown}"
