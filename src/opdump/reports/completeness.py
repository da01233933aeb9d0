"""The line at the end of a run: what ran, what was captured, what was skipped and why.

opdump: 2,412 operators ran: 1,830 captured, 582 skipped (540 view, 42 metadata); 5,610 tensors in 5,622 files,
48.1 MB, steps 0-2, 3.20 s; next: opdump show /tmp/dump
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from opdump.reports import amounts

if TYPE_CHECKING:
    from opdump.session import CaptureReport


def completeness_line(report: CaptureReport, *, rank: int | None = None) -> str:
    """Say in one line what a run left; `rank` is named where several processes ran."""
    where = "opdump" if rank is None else f"opdump rank {rank}"
    if report.executed == 0:
        return (
            f"{where}: no operator ran in a wanted step, nothing was dumped; "
            f"compare `iteration` in the config with the steps of the script"
        )
    parts = [f"{amounts.count(report.executed, 'operator')} ran: {report.captured:,} captured"]
    if report.skipped:
        parts[0] += f", {sum(report.skipped.values()):,} skipped ({_by_reason(report.skipped)})"
    left_out = ""
    if report.tensors_skipped:
        left_out = f" ({_by_reason(report.tensors_skipped)} left out)"
    parts.append(
        f"{amounts.count(report.tensors, 'tensor')}{left_out} in {amounts.count(report.files, 'file')}, "
        f"{amounts.size(report.bytes)}, {amounts.steps(report.steps)}, {amounts.seconds(report.seconds)}"
    )
    parts.append(f"next: opdump show {shlex.quote(str(report.path))}")
    return f"{where}: " + "; ".join(parts)


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
        }
    )
