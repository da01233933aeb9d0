"""Runs the checks over a whole dump, step by step, and prints the findings and the hits of watchpoints.

The checks use statistics if the dump has them, and overflow files. `opdump run --check` prints what it found in the same tables.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdump import amounts
from opdump.catalog.catalog import Catalog, Execution
from opdump.catalog.query import Asked, executions_of
from opdump.checks import CHECKS, Checks, Finding, Thresholds
from opdump.checks.nonfinite_lineage import Checked, Histories, History, SeenOperator
from opdump.checks.not_finite import PARAMETER, PROGRAMS_OWN, Consequences, written
from opdump.checks.tensor_checks import INTEGERS, LARGEST, TensorStats, stats_of, stats_of_summary
from opdump.checks.watchpoints import Measured, WatchHit, Watchpoint, WatchpointChecker, in_order_of_time
from opdump.conversion.overflow import Overflow, find_overflows
from opdump.doing import note
from opdump.errors import OpdumpError
from opdump.graph import shown_source
from opdump.index.runs import CONFIG_NAME, METADATA, read_json_object
from opdump.kernels import DTYPE_CODES, SUMMARY_FIELDS, summarise
from opdump.layouts.ascend.operator_files import OverflowRecord
from opdump.layouts.ascend.places import is_time
from opdump.records import DamagedPayload, OpRecord, TensorRecord
from opdump.reports.shown_part import damage_of, finite_json
from opdump.reports.table import Column, Printer, printable
from opdump.step_table import FactsByTemplate, StepTable


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
        chosen = None if watchpoints or CHECKS.loaded().keys() != _OWN_CHECKS else ChosenOperators(thresholds)
        for place, one in enumerate(catalog.steps_of(number)):
            is_before = step == one + 1 and watch.has_history
            if step in (None, one):
                note("checking step", one, "of rank", number)
                checks = Checks(thresholds, is_first_step=place == 0, is_poisoned=is_poisoned, histories=histories)
                overflows += _check_step(catalog, one, number, checks, chosen, checked)
                is_poisoned = checks.poisons
            elif not is_before:
                continue
            if watchpoints:
                executions = catalog.executions(step=one, rank=number)
                watch_step(watch, executions, one, checked.problems, overflowed=number in overflowed)
            if is_before:
                watch.hits.clear()
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


def _check_step(
    catalog: Catalog, step: int, rank: int, checks: Checks, chosen: ChosenOperators | None, checked: Checked
) -> list[OverflowRecord]:
    """Add the findings of a step; returns its overflow files."""
    overflows: list[OverflowRecord] = []
    table = catalog.table(step, rank)
    is_intact = catalog.has_intact_elements(table, rank)
    if chosen is not None and is_intact and chosen.can_choose(table):
        executions = chosen.of(table, checks, checked)
    else:
        executions = filter(None, map(Asked(include_skipped=False).of, executions_of(table)))
    for execution in executions:
        if isinstance(execution.op, OverflowRecord):
            overflows.append(execution.op)
        else:
            checked.findings += checks.findings(execution.op, [*_stats(execution, checked, is_intact=is_intact)])
    checked.findings += checks.end_step()
    return overflows


def _stats(execution: Execution, checked: Checked, *, is_intact: bool) -> Iterator[tuple[TensorRecord, TensorStats]]:
    for record in execution.tensors:
        checked.tensors += 1
        try:
            stats = _stats_of(record)
            damage = damage_of(record) if record.statistics and not is_intact else ""
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
            printer.text(f"... and {amounts.count(left, 'more finding')} ({shows_all} shows all)")
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


# Prints the findings of the checks that ran with a program, on standard error, in the same tables as `opdump check`.

_ROWS: Final = 20
"""Rows per table; `--json` has all of them."""


def print_checked(checked: Checked, *, path: str, rank: int | None) -> None:
    """Print the findings. `rank` is named if several processes ran."""
    if not checked.tensors and not checked.problems:
        return  # the completeness line says why nothing was captured
    where = "opdump" if rank is None else f"opdump rank {rank}"
    printer = Printer(sys.stderr)
    printer.text(f"{where}: what the checks found:")
    of_rank = "" if rank is None else f" --rank {rank}"
    shows_all = f"opdump check {shlex.quote(path)}{of_rank} --limit 0"
    print_findings(printer, checked, limit=_ROWS, folds=True, shows_all=shows_all)
    for problem in checked.problems:
        printer.text(f"{where}: problem: {problem}")


# Watchpoints: checks the tensors of a step and prints the hits, the earliest first.

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
    watchpoints = checked.watchpoints
    if not watchpoints:
        return
    met = [hit for hit in checked.hits if not hit.error_code]
    shown = met[:limit] if limit else met
    if shown:
        printer.text()
        printer.table(_HIT_COLUMNS, [_hit_row(hit) for hit in shown])
        if len(met) > len(shown):
            printer.text(f"... and {amounts.count(len(met) - len(shown), 'more hit')} ({shows_all} shows all)")
        printer.tell_left_out()
    printer.text()
    counts = Counter(hit.condition for hit in met)
    listed = ": " + ", ".join(f"{number:,} {name}" for name, number in counts.items()) if met else ""
    told = amounts.count(len(met), "hit") if met else "no hits"
    printer.text(f"{told} of {amounts.count(len(watchpoints), 'watchpoint')}{listed}")
    for watchpoint in watchpoints:
        if watchpoint.is_asked and not checked.looked[watchpoint.text]:
            printer.text(f"{watchpoint.text}: nothing was checked ({_missing(watchpoint)})")
    _print_unchecked(printer, checked)


_HIT_COLUMNS: Final = (
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


def _print_unchecked(printer: Printer, checked: Checked) -> None:
    unchecked: dict[tuple[str, str], list[int]] = {}
    for hit in checked.hits:
        if hit.error_code:
            unchecked.setdefault((hit.condition, hit.text), []).append(hit.step or 0)
    for (name, text), steps in unchecked.items():
        printer.text(f"{name}: {amounts.count(len(steps), 'tensor')} of {amounts.steps(sorted(set(steps)))} {text}")


def hit_json(hit: WatchHit) -> dict[str, Any]:
    """A hit for `--json`."""
    found: dict[str, Any] = finite_json(asdict(hit))
    return found


def _hit_row(hit: WatchHit) -> tuple[str, ...]:
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


# Where NaN and infinities were born, how far they went, and what made them finite again:
#
# inf  born    step 0  mm at t5.py:93 (wo-Linear/mm-op183): 33 inf of 128 elements
#      passed on by 1 operator, in forward
#      KILLED  step 0  clamp at t5.py:507 (0-T5Block/clamp-op192): 33 inf

_MOST_NAMED: Final = 3
"""Maximum number of kills, and of parameters, named per history."""


def print_histories(
    printer: Printer, histories: Sequence[History], *, limit: int, shows_all: str = "--limit 0"
) -> None:
    """Print a few lines per history, at most `limit` histories (all for 0)."""
    shown = histories[:limit] if limit else histories
    for history in shown:
        for number, line in enumerate(_lines(history)):
            printer.text(("     " if number else f"{history.kind:<5}") + line, style="bold" if "KILLED" in line else "")
    if len(histories) > len(shown):
        printer.text(f"... and {amounts.count(len(histories) - len(shown), 'more birth')} ({shows_all} shows all)")
    if shown:
        printer.text()


def _lines(history: History) -> Iterator[str]:
    if history.born is not None:
        yield f"born    {_told(history.born)}"
    else:
        given = printable(shown_source(history.given)) or "by an operator without data"
        where = ", memory that no recorded operator wrote" if given.startswith("data-") else ""
        yield f"given   step {history.first_step}  {given}{where}"
    if history.passed_on:
        last = f", up to step {history.last_step}" if history.last_step > history.first_step else ""
        yield f"passed on by {amounts.count(history.passed_on, 'operator')}, in {', '.join(history.phases)}{last}"
    killed: dict[str, list[SeenOperator]] = {}
    for place in history.killed:
        killed.setdefault(place.op_name, []).append(place)
    for places in list(killed.values())[:_MOST_NAMED]:
        yield f"KILLED  {_told(*places)}"
    if len(killed) > _MOST_NAMED:
        yield f"... and by {amounts.count(len(killed) - _MOST_NAMED, 'more operator')}"
    if history.parameters:
        names = list(history.parameters)
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        named = ", ".join(map(printable, names[:_MOST_NAMED]))
        yield f"kept    step {min(history.parameters.values())}  in {named}{more}: later steps read them"


def _told(place: SeenOperator, *later: SeenOperator) -> str:
    at = f" at {printable(os.path.basename(place.source))}" if place.source else ""
    name = "/".join(place.op_name.split("/")[-2:])
    steps = amounts.steps([place.step, *(each.step for each in later)])
    return f"{steps}  {printable(place.op_type)}{at} ({printable(name)}): {place.text}"


# Numpy selects the operators that the checks must see, and only these become records. An operator is selected if one of its
# tensors has NaN, infinities, only zeros or a number near the largest of its type, or if its name and types change what the checks
# know about other operators. Selecting more operators than necessary changes no finding.

_OWN_CHECKS: Final = frozenset({"nan", "inf", "all zero", "extreme"})
_NOT_FINITE: Final = slice(SUMMARY_FIELDS.index("nan"), SUMMARY_FIELDS.index("negative_inf") + 1)
_ZERO, _MAX, _MIN = (SUMMARY_FIELDS.index(name) for name in ("zero", "max", "min"))


@dataclass(frozen=True, slots=True, eq=False)
class _Facts:
    """What is known of a template. Arrays have one item per tensor or per operator."""

    has_data: NDArray[np.bool_]
    """The tensors that were not left out."""
    known: NDArray[np.bool_]
    """The tensors that the checks can see."""
    can_be_seen: NDArray[np.bool_]
    """The operators with such a tensor."""
    all_zeros: NDArray[np.float64]
    """The number of zeros at which a tensor counts as all zero; infinite if the check does not apply to its type."""
    bounds: NDArray[np.float64]
    """The magnitude from which a tensor is extreme; infinite if its type has no such limit."""
    kept: NDArray[np.bool_]
    """The tensors of the program with two axes or more: if they are zero, the end of the step decides."""
    changing: NDArray[np.bool_]
    """The operators that change what is known of other operators."""


class ChosenOperators:
    """Selects operators for one rank, if all checks are opdump's own: checks of other packages see every operator."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._facts = FactsByTemplate(lambda table: _facts_of(table, thresholds))

    @staticmethod
    def can_choose(table: StepTable[TensorRecord]) -> bool:
        """Whether the step has a template, and its tensors have summaries, or neither statistics nor elements."""
        return table.template is not None and all(
            place not in table.others and place not in table.files for place in table.bare
        )

    def of(self, table: StepTable[TensorRecord], checks: Checks, checked: Checked) -> Iterator[Execution]:
        """The operators of the step that `checks` must see, in execution order. The tensors of the others are counted."""
        facts = self._facts.of(table)
        unusual, zeros = self._unusual(facts, table.summaries)
        chosen = np.zeros(len(facts.changing), np.bool_)
        if unusual.any():
            chosen |= facts.changing
            chosen[table.owners[unusual]] = True
            if (zeros & facts.kept).any():
                chosen[:] = True
            for place in np.flatnonzero(facts.can_be_seen).tolist():
                if chosen[place] or checks.follow_memory:
                    chosen[place] = True
                    op, tensors = table.execution(place)
                    yield Execution(op, tuple(tensor for tensor in tensors if not tensor.skip))
        unseen = facts.has_data & ~(chosen & facts.can_be_seen)[table.owners]
        checked.tensors += int(np.count_nonzero(unseen))
        checked.unknown += int(np.count_nonzero(unseen & ~facts.known))

    def _unusual(self, facts: _Facts, rows: NDArray[np.float64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """The tensors about which a check may report something, and those of them that are all zero."""
        zeros = facts.known & (rows[:, _ZERO] >= facts.all_zeros)
        # NaN is not below the bound either.
        is_small = (np.abs(rows[:, _MAX]) < facts.bounds) & (np.abs(rows[:, _MIN]) < facts.bounds)
        unusual = zeros | (facts.known & (~is_small | rows[:, _NOT_FINITE].any(axis=1)))
        return unusual, zeros


def _facts_of(table: StepTable[TensorRecord], thresholds: Thresholds) -> _Facts:
    ops, tensors = table.ops, table.tensors
    has_data = np.array([not (each.skip or each.op.skip) for each in tensors], np.bool_)
    known = has_data & table.with_summary
    seen: list[list[TensorRecord]] = [[] for _ in ops]
    for number in np.flatnonzero(known).tolist():
        seen[table.owners[number]].append(tensors[number])
    return _Facts(
        has_data=has_data,
        known=known,
        can_be_seen=np.array([*map(bool, seen)], np.bool_),
        all_zeros=np.array([_all_zeros(each, thresholds) for each in tensors], np.float64),
        bounds=np.array([thresholds.extreme * LARGEST.get(each.dtype, math.inf) for each in tensors], np.float64),
        kept=np.array([len(each.shape) >= 2 and _is_of_program(each) for each in tensors], np.bool_),
        changing=_changing(ops, seen, thresholds),
    )


def _all_zeros(record: TensorRecord, thresholds: Thresholds) -> float:
    count = math.prod(record.shape)
    is_asked = record.dtype not in INTEGERS and record.dtype != "bool" and thresholds.zeros <= count < 2**63
    return float(count) if is_asked else math.inf


def _is_of_program(record: TensorRecord) -> bool:
    return record.op.op_type == PARAMETER or record.source.startswith(PROGRAMS_OWN)


def _changing(
    ops: Sequence[OpRecord], tensors_of: Sequence[Sequence[TensorRecord]], thresholds: Thresholds
) -> NDArray[np.bool_]:
    """The operators that change what `Consequences` knows without a look at numbers, or that undo a change by an earlier operator
    of the same name.
    """
    names = Counter(op.op_name for op in ops)
    consequences = Consequences(thresholds)
    found = np.zeros(len(ops), np.bool_)
    for place, (op, records) in enumerate(zip(ops, tensors_of, strict=True)):
        known = written(op, records)
        inputs = [each for each in known if each.io == "input"]
        outputs = [each for each in known if each.io == "output"]
        found[place] = consequences.observe_origin(op, inputs, outputs) or names[op.op_name] > 1
    return found


# The settings of a first run that a second run takes over: its directory and its configuration.


def dump_path(catalog: Catalog) -> str:
    """The dump directory of the first run: from its plan or, without one, the parent of `{time}` or `rank_N`, or else the path
    that was opened.
    """
    for run in catalog.runs:
        if run.plan.get("path"):
            return str(run.plan["path"])
    path = catalog.path.absolute()
    for each in (path, *path.parents):
        if is_time(each.name) or each.name.startswith("rank_"):
            return str(each.parent)
    return str(path)


def first_config(catalog: Catalog) -> dict[str, Any]:
    """The data_dump.json stored in the dump; empty if there is none or it cannot be read."""
    path = catalog.path.absolute()
    places = [path, *(path / f"rank_{rank}" for rank in catalog.ranks), *path.parents]
    found = (read_json_object(place / METADATA / CONFIG_NAME) for place in places)
    return next((config for config in found if config), {})
