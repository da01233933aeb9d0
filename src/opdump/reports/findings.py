"""Runs the checks over a whole dump, step by step, and prints the findings. They use statistics if the dump has them, and
overflow files.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from opdump import amounts
from opdump.catalog.catalog import Catalog, Execution
from opdump.checks import Checks, Finding, Thresholds
from opdump.checks.histories import Checked, Histories
from opdump.checks.tensor_checks import TensorStats, stats_of, stats_of_summary
from opdump.checks.watchpoints import Watchpoint, WatchpointChecker, in_order_of_time
from opdump.conversion.overflow import Overflow, find_overflows
from opdump.doing import note
from opdump.errors import OpdumpError
from opdump.kernels import DTYPE_CODES, summarise
from opdump.layouts.ascend.overflow_files import OverflowRecord
from opdump.records import DamagedPayload, OpRecord, TensorRecord
from opdump.reports.checked_columns import ChosenOperators
from opdump.reports.histories import print_histories
from opdump.reports.statistics_shown import damage_of
from opdump.reports.table import Column, Printer, printable
from opdump.reports.watchpoints import add_overflow, hit_json, print_hits, watch_step


def check_dump(
    catalog: Catalog,
    thresholds: Thresholds,
    *,
    rank: int | None = None,
    step: int | None = None,
    watchpoints: Sequence[Watchpoint] = (),
) -> Checked:
    """Run every check over a dump, or over one rank or step of it. One step is in memory at a time, and elements are only read of
    tensors without statistics.

    Files that cannot be read are listed in `problems`, with the problems of the catalog. Raises NotInDumpError if the rank does
    not exist.
    """
    checked = Checked(watchpoints=tuple(watchpoints))
    overflows: list[OverflowRecord] = []
    overflowed = _overflow_dumps(catalog)
    for number in catalog.ranks if rank is None else (rank,):
        is_poisoned = False
        histories = Histories()
        watch = WatchpointChecker(watchpoints)
        chosen = None if watchpoints or not ChosenOperators.can_choose() else ChosenOperators(thresholds)
        for place, one in enumerate(catalog.steps_of(number)):
            if step not in (None, one):
                if step == one + 1 and watch.has_history:
                    watch_step(
                        watch,
                        catalog.executions(step=one, rank=number),
                        one,
                        checked.problems,
                        overflowed=number in overflowed,
                    )
                    watch.hits.clear()
                continue
            note("checking step", one, "of rank", number)
            checks = Checks(thresholds, is_first_step=place == 0, is_poisoned=is_poisoned, histories=histories)
            columns = None if chosen is None else catalog.columns(one, number, inspected=True)
            if chosen is not None and columns is not None and columns.with_summary[[*columns.files]].all():
                seen, unknown = chosen.count(columns)
                checked.tensors += seen
                checked.unknown += unknown
                for op, known in chosen.of(columns, checks):
                    checked.findings += checks.findings(op, known)
            else:
                for execution in catalog.executions(step=one, rank=number):
                    if isinstance(execution.op, OverflowRecord):
                        overflows.append(execution.op)
                        continue
                    checked.findings += checks.findings(execution.op, list(_stats(execution, checked)))
            checked.findings += checks.end_step()
            is_poisoned = checks.poisons
            if watchpoints:
                watch_step(
                    watch,
                    catalog.executions(step=one, rank=number),
                    one,
                    checked.problems,
                    overflowed=number in overflowed,
                )
        checked.hits += watch.hits
        checked.looked += watch.looked
        checked.histories += histories.found
    _add_overflows(catalog, checked, overflows, is_whole=rank is None and step is None)
    checked.hits = in_order_of_time(checked.hits)
    checked.problems = list(dict.fromkeys([*checked.problems, *map(str, catalog.problems)]))
    checked.findings.sort(
        key=lambda each: (each.rank is None, each.rank or 0, each.step is None, each.step or 0, each.order)
    )
    return checked


def _stats(execution: Execution, checked: Checked) -> Iterator[tuple[TensorRecord, TensorStats]]:
    for record in execution.tensors:
        checked.tensors += 1
        try:
            stats = _stats_of(record)
            damage = damage_of(record) if record.statistics else ""
        except OpdumpError as error:
            stats, damage = None, str(error)
        if damage:
            checked.problems.append(damage)
        if stats is None:
            checked.unknown += 1
        else:
            checked.sampled += stats.whole is not None
            yield record, stats


def _stats_of(record: TensorRecord) -> TensorStats | None:
    count = math.prod(record.shape)
    stats = stats_of(record.statistics, count) if record.statistics else None
    if stats is not None or record.payload is None or isinstance(record.payload, DamagedPayload):
        return stats
    array = record.payload.to_host()
    if np.iscomplexobj(array):
        array = np.ascontiguousarray(array).view(array.real.dtype)
    if array.dtype.name not in DTYPE_CODES:
        return None
    return stats_of_summary(summarise(array), count if record.sample else None)


def _overflow_dumps(catalog: Catalog) -> set[int]:
    """The ranks that opdump recorded in overflow mode, in a layout without overflow files: each of their operators overflowed."""
    plans: dict[int, list[Any]] = {}
    for run in catalog.runs:
        plans.setdefault(run.rank_id, []).append(run.plan or {})
    return {
        rank
        for rank, of_rank in plans.items()
        if all(
            plan.get("captures") == "overflow" and str(plan.get("layout", "")).startswith("mindspore-2")
            for plan in of_rank
        )
    }


def _add_overflows(catalog: Catalog, checked: Checked, ops: Sequence[OverflowRecord], *, is_whole: bool) -> None:
    """Add the overflow files of the dump. The catalog knows the rank and step of the files that it lists; other files count for
    the whole dump.
    """
    search = find_overflows([str(catalog.path)])
    checked.problems += [f"{each.path}: {each.reason}" for each in search.failures]
    by_name: dict[str, list[tuple[str, OverflowRecord]]] = {}
    for op in ops:
        for file in op.files:
            by_name.setdefault(file.rpartition("/")[2], []).append((f"/{file}", op))
    for overflow in search.overflows:
        # Ranks may have files of the same name: take the one with the longest matching end of the path.
        ending = [each for each in by_name.get(overflow.path.rpartition("/")[2], ()) if overflow.path.endswith(each[0])]
        if ending or is_whole:
            listed = max(ending, key=lambda each: len(each[0]))[1] if ending else None
            finding = _overflow_finding(overflow, listed)
            checked.findings.append(finding)
            add_overflow(checked, finding, overflow.microseconds)


def _overflow_finding(overflow: Overflow, op: OpRecord | None) -> Finding:
    report = overflow.report
    return Finding(
        check="overflow",
        text="; ".join(report.words),
        op_name=overflow.operator,
        op_type=overflow.op_type,
        net_name="" if op is None else op.net_name,
        rank=None if op is None else op.rank_id,
        step=None if op is None else op.step,
        order=0 if op is None else op.order,
        status=report.statuses[0],
        file=overflow.path,
    )


def print_findings(
    printer: Printer, checked: Checked, *, limit: int, folds: bool = False, shows_all: str = "--limit 0"
) -> None:
    """Print one row for each finding, at most `limit` (all for 0), and the number of each kind; then the histories, and the hits
    of watchpoints.

    On a terminal, or with `folds`, inherited findings are only counted. `shows_all` is the option that shows the rest.
    """
    findings = checked.findings
    if printer.width is not None or folds:
        findings = [finding for finding in findings if not finding.inherited] or findings
    folded = len(checked.findings) - len(findings)
    shown = findings[:limit] if limit else findings
    if shown:
        columns = (
            Column("rank", right=True),
            Column("step", right=True),
            Column("operator", gives_way=True),
            Column("type", spare=3),
            Column("source"),
            Column("tensor", spare=1),
            Column("dtype", spare=4),
            Column("shape", spare=5),
            Column("check"),
            Column("what was found", gives_way=True),
            Column("", spare=2),
        )
        printer.table(columns, [_row(finding) for finding in shown])
        left = len(findings) - len(shown)
        if left:
            printer.text(f"... and {amounts.count(left, 'finding')} more ({shows_all} shows all)")
        if folded:
            printer.text(
                f"{amounts.count(folded, 'inherited finding')} not shown ({'--wide' if not folds else shows_all} shows all)"
            )
        printer.tell_left_out()
        printer.text()
    print_histories(printer, checked.histories, limit=limit, shows_all=shows_all)
    printer.text(_summary(checked))
    print_hits(printer, checked, limit=limit, shows_all=shows_all)


def _summary(checked: Checked) -> str:
    looked = f"{amounts.count(checked.tensors - checked.unknown, 'tensor')} checked"
    if checked.sampled:
        looked += f", {checked.sampled:,} of them by their first elements only, because the dump has samples"
    if checked.unknown:
        looked += f", {checked.unknown:,} of them without statistics and elements"
    if not checked.findings:
        return f"no findings ({looked})"
    counts = Counter(finding.check for finding in checked.findings)
    listed = ", ".join(f"{number:,} {name}" for name, number in counts.items())
    return f"{amounts.count(len(checked.findings), 'finding')}: {listed} ({looked})"


def _row(finding: Finding) -> tuple[str, ...]:
    tensor = "" if finding.io is None else f"{finding.io}:{finding.slot}"
    return (
        "" if finding.rank is None else str(finding.rank),
        "" if finding.step is None else str(finding.step),
        printable(finding.op_name) or "(not dumped)",
        printable(finding.op_type),
        printable(os.path.basename(finding.source)),
        tensor,
        finding.dtype,
        "" if finding.io is None else "x".join(map(str, finding.shape)) or "()",
        finding.check,
        (f"0x{finding.status:x} " if finding.status else "") + finding.text,
        "origin" if finding.origin else "inherited" if finding.inherited else "",
    )


def findings_json(catalog: Catalog, checked: Checked) -> str:
    """The findings as JSON."""
    return json.dumps({"path": str(catalog.path), **checked_json(checked)}, indent=2, ensure_ascii=False)


def checked_json(checked: Checked) -> dict[str, Any]:
    """The findings in the shape of the JSON output."""
    return {
        "tensors": checked.tensors,
        "unknown": checked.unknown,
        "sampled": checked.sampled,
        "findings": [asdict(finding) for finding in checked.findings],
        "histories": [asdict(history) for history in checked.histories],
        "watchpoints": [{"text": each.text, "tensors": checked.looked[each.text]} for each in checked.watchpoints],
        "hits": [hit_json(hit) for hit in checked.hits],
        "problems": checked.problems,
    }
