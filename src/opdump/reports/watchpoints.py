"""Watchpoints over a dump: checks the tensors of a step and prints the hits, the earliest first.

watchpoint          step  operator        source       tensor    what was found
gradient_vanishing     2  .../mm-op46     train.py:12  output:0  abs_mean 3e-10 < 1e-09
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from opdump import amounts
from opdump.checks import Finding
from opdump.checks.not_finite import PARAMETER
from opdump.checks.watchpoints import Measured, WatchHit, Watchpoint, WatchpointChecker
from opdump.errors import OpdumpError
from opdump.layouts.ascend.overflow_files import OverflowRecord
from opdump.records import DamagedPayload, OpRecord, TensorRecord
from opdump.reports.dump_json import finite_json
from opdump.reports.table import Column, Printer, printable

if TYPE_CHECKING:
    from opdump.catalog.execution import Execution
    from opdump.checks.histories import Checked

_WHAT: Final = {
    "weight": "no weight is known",
    "gradient": "no output of a backward operator",
    "activation": "no output of an activation function",
    "tensor": "no such tensor",
}


def watch_step(
    checker: WatchpointChecker, executions: Iterable[Execution], step: int, problems: list[str], *, overflowed: bool
) -> None:
    """Check the tensors of a step. Unreadable files are added to `problems`. `overflowed`: all operators of the step overflowed."""
    for execution in executions:
        if isinstance(execution.op, OverflowRecord):
            continue
        if overflowed and execution.op.op_type != PARAMETER:
            checker.overflowed(execution.op, "overflow")
        checker.observe(execution.op, [(record, _measured(record, problems)) for record in execution.tensors])
    checker.end_step(step)


def _measured(record: TensorRecord, problems: list[str]) -> Measured:
    """The measures of a tensor for watchpoints. Its file is read only if one is needed."""

    def load() -> Any:
        payload = record.payload
        if payload is None or record.sample or isinstance(payload, DamagedPayload) or "complex" in record.dtype:
            return None
        try:
            return payload.to_host()
        except OpdumpError as error:
            problems.append(str(error))
            return None

    return Measured(math.prod(record.shape), record.statistics, load)


def add_overflow(checked: Checked, finding: Finding, microseconds: int) -> None:
    """Add the hits of overflow watchpoints on an overflow file."""
    checker = WatchpointChecker(checked.watchpoints)
    op = OpRecord(
        op_type=finding.op_type,
        op_name=finding.op_name,
        timestamp=microseconds,
        step=finding.step or 0,
        net_name=finding.net_name,
        rank_id=finding.rank or 0,
        order=finding.order,
    )
    checker.overflowed(op, f"0x{finding.status:x} {finding.text}")
    checked.hits += checker.hits
    checked.looked += checker.looked


def print_hits(printer: Printer, checked: Checked, *, limit: int, shows_all: str) -> None:
    """Print one row for each hit, at most `limit` (all for 0), the number of hits per watchpoint, and what could not be checked."""
    watchpoints, hits = checked.watchpoints, checked.hits
    if not watchpoints:
        return
    met = [hit for hit in hits if not hit.error_code]
    shown = met[:limit] if limit else met
    if shown:
        columns = (
            Column("watchpoint"),
            Column("rank", right=True, spare=6),
            Column("step", right=True),
            Column("operator", gives_way=True),
            Column("type", spare=3),
            Column("source", spare=2),
            Column("tensor", spare=1),
            Column("dtype", spare=4),
            Column("shape", spare=5),
            Column("what was found", gives_way=True),
        )
        printer.text()
        printer.table(columns, [_row(hit) for hit in shown])
        if len(met) > len(shown):
            printer.text(f"... and {amounts.count(len(met) - len(shown), 'hit')} more ({shows_all} shows all)")
        printer.tell_left_out()
    printer.text()
    counts = Counter(hit.condition for hit in met)
    listed = ": " + ", ".join(f"{number:,} {name}" for name, number in counts.items()) if met else ""
    told = amounts.count(len(met), "hit") if met else "no hits"
    printer.text(f"{told} of {amounts.count(len(watchpoints), 'watchpoint')}{listed}")
    for watchpoint in watchpoints:
        if watchpoint.is_asked and not checked.looked[watchpoint.text]:
            printer.text(f"{watchpoint.text}: there was nothing to look at ({_missing(watchpoint)})")
    unchecked: dict[tuple[str, str], list[int]] = {}
    for hit in hits:
        if hit.error_code:
            unchecked.setdefault((hit.condition, hit.text), []).append(hit.step or 0)
    for (name, text), steps in unchecked.items():
        printer.text(f"{name}: {amounts.count(len(steps), 'tensor')} of {amounts.steps(sorted(set(steps)))} {text}")


def hit_json(hit: WatchHit) -> dict[str, Any]:
    """A hit for `--json`."""
    found: dict[str, Any] = finite_json(asdict(hit))
    return found


def _row(hit: WatchHit) -> tuple[str, ...]:
    return (
        hit.condition,
        "" if hit.rank is None else str(hit.rank),
        "" if hit.step is None else str(hit.step),
        printable(hit.op_name) or "(not dumped)",
        printable(hit.op_type),
        printable(os.path.basename(hit.source)),
        "" if hit.io is None else f"{hit.io}:{hit.slot}",
        hit.dtype,
        "" if hit.io is None else "x".join(map(str, hit.shape)) or "()",
        hit.text,
    )


def _missing(watchpoint: Watchpoint) -> str:
    condition = watchpoint.condition
    if condition.kind == "device overflow":
        return "no overflow was recorded; op_debug_mode 3 records them"
    what = _WHAT[condition.target]
    what += f" of {watchpoint.operators}" if watchpoint.operators else ""
    return f"{what} in step 0" if condition.first_step_only else what
