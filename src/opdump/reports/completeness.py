"""The lines at the end of a run: counts, the verdict, and the command to type next.

opdump: 2,412 operators ran: 1,830 captured, 582 skipped; steps 0-2, 48.1 MB in 5,622 files, 3.20 s (12 % overhead)
opdump: first infinity: step 2, aten::log at train.py:11, 3 of 32 elements of output.0 (Default/log-op21)
opdump: next: opdump show /tmp/dump --op log-op21 --step 2
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
from opdump.recorder.program_facts import GAPS
from opdump.verdict import Verdict

if TYPE_CHECKING:
    from opdump.capturing.family import ChildReport
    from opdump.capturing.report import CaptureReport


def closing_lines(report: CaptureReport, *, rank: int | None = None) -> list[str]:
    """The outcome of a run. `rank` is named if several processes ran.

    If nothing was captured, the only line gives the reason.
    """
    where = "opdump" if rank is None else f"opdump rank {rank}"
    empty, verdict = _of_empty_capture(report), verdict_line(report, rank=rank)
    before = [f"{where}: {text}" for text in (told(report.degraded), "" if empty else _counts(report)) if text]
    return [*before, *filter(None, [verdict]), f"{where}: {empty or f'next: {next_command(report)}'}"]


def _of_empty_capture(report: CaptureReport) -> str:
    """Why the run left no data; empty if it left some."""
    if report.executed == 0 and any(child.left_data for child in report.children):
        return ""
    if report.executed == 0 and report.failure:
        return "nothing was dumped"
    if report.nothing is not None and (report.executed == 0 or report.nothing.is_gap or report.is_dropped):
        ran = f"{amounts.count(report.executed, 'operator')} ran, and nothing" if report.executed else "nothing"
        return f"{ran} was captured: {report.nothing.reason}"
    return ""


def _counts(report: CaptureReport) -> str:
    """The counts of all processes; `opdump show` lists them by process, step and reason."""
    parts: list[CaptureReport | ChildReport] = [report, *(child for child in report.children if child.left_data)]
    several = sum(1 for part in parts if part.executed)
    skipped = sum((Counter(part.skipped) for part in parts), Counter[str]())
    missing = sum((Counter(part.tensors_skipped) for part in parts), skipped)
    gaps = ", ".join(f"{number:,} {reason}" for reason, number in sorted(missing.items()) if reason in GAPS)
    names = ("executed", "captured", "bytes", "files")
    executed, captured, size, files = (sum(getattr(part, name) for part in parts) for name in names)
    written = [_steps(report), f"{amounts.size(size)} in {amounts.count(files, 'file')}", _duration(report)]
    outcome = f": {captured:,} captured" + (f", {skipped.total():,} skipped" if skipped else "")
    if MODES[report.verdict.mode].watches:  # the records are not of operators, but of watched outputs after them
        outcome = f", watched outputs were read {amounts.count(captured, 'time')}"
    facts = [
        f"{amounts.count(executed, 'operator')} ran{f' in {several} processes' if several > 1 else ''}{outcome}",
        f"missing: {gaps}" if gaps else "",
        ", ".join(filter(None, written)),
        _triggers(report.fired),
    ]
    return "; ".join(filter(None, facts))


def _steps(report: CaptureReport) -> str:
    steps = amounts.steps(report.steps) if report.steps else ""
    is_long = len(steps) > 24  # many ranges
    return f"{len(report.steps):,} steps from {min(report.steps)} to {max(report.steps)}" if is_long else steps


def _duration(report: CaptureReport) -> str:
    overhead = "" if report.overhead is None else f" ({max(1, round(100 * report.overhead)):,} % overhead)"
    return f"{amounts.seconds(report.seconds)}{overhead}"


def _triggers(fired: Sequence[str]) -> str:
    return f"written for {', '.join(fired[:3])}{', ...' if len(fired) > 3 else ''}" if fired else ""


def next_command(report: CaptureReport) -> str:
    """The command that shows what the run found: the operator of the verdict if its step is in the dump, else the whole dump."""
    child, verdict = first_of(report)
    command = f"opdump show {shlex.quote(str(report.path))}"
    is_kept = child is not None or (verdict.step in report.steps and not report.degraded)
    if verdict.kind not in _FIRST or not verdict.op_name or not is_kept:
        return command
    name = shlex.quote(_NEEDLESS_SCOPE.sub("", verdict.op_name))
    return f"{command} --op {name} --step {verdict.step}" + ("" if child is None else f" --rank {child}")


def failure_line(report: CaptureReport, *, with_cause: bool = True) -> str:
    """Why the dump is incomplete, unless that was reported already, and how many errors there were."""
    operators = report.skipped.get("not written", 0)
    lost = [amounts.count(operators, "operator")] if operators else []
    lost += [amounts.count(report.files_lost, "file")] if report.files_lost else []
    told = f" ({' and '.join(lost)} lost)" if lost else ""
    return f"opdump: error: the dump is incomplete{told}" + (f": {report.failure}" if with_cause else "")


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
_NEEDLESS_SCOPE: Final = re.compile(r"^.*/(?=[^/]+-op\d+$)")
"""The scope of an operator whose last component is unique in a step."""
_FILE_OF_A_CELL: Final = re.compile(r"ipykernel_\d+[/\\]\d+\.py$")


def verdict_line(report: CaptureReport, *, rank: int | None = None) -> str:
    """The verdict on a run and its child processes; empty if nothing was checked. `rank` is named if several ran."""
    where = "opdump" if rank is None else f"opdump rank {rank}"
    child, verdict = first_of(report)
    if verdict.kind in _FIRST:
        place = "" if child is None else f"rank {child}, "
        return f"{where}: {place}first {_FIRST[verdict.kind]}: {_found(verdict)}"
    if verdict.kind == "not looked" or not report.executed + sum(child.executed for child in report.children):
        return ""
    skipped = sum((Counter(child.skipped) for child in report.children), Counter(report.skipped))
    return f"{where}: {_nothing(verdict, skipped)}"


def first_of(report: CaptureReport) -> tuple[int | None, Verdict]:
    """The verdict with the earliest step of all processes, and the rank of the child that it is from; None for `report` itself."""
    of_children = [(child.rank_id, child.verdict) for child in report.children if child.verdict is not None]
    all_of = [(None, report.verdict), *of_children]
    found = [(place, verdict) for place, verdict in all_of if verdict.kind in _FIRST]
    if found:
        return min(found, key=lambda each: each[1].step)
    clean = [verdict for _, verdict in all_of if verdict.kind == "none"]
    if not clean:
        return None, report.verdict
    meant = next((verdict.how for verdict in clean if verdict.how), "")
    tensors, not_looked = (sum(each) for each in zip(*((one.tensors, one.not_looked) for one in clean), strict=True))
    return None, Verdict(kind="none", mode=clean[0].mode, how=meant, tensors=tensors, not_looked=not_looked)


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
