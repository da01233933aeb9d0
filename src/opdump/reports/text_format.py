"""Reports as text: tables that fit a terminal, and are whole in a pipe."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from opdump import amounts
from opdump.call_stacks import told_lines
from opdump.catalog.catalog import Catalog, Execution, Run
from opdump.catalog.query import executions_of, has_finding, kind_of
from opdump.checks.not_finite import PARAMETER, Origins, Update, is_root_input, is_update, not_finite
from opdump.degradation import told
from opdump.errors import OpdumpError
from opdump.graph import CONSTANT_PREFIX, EARLIER_PREFIX, PARAMETER_PREFIX, graph_word, shown_source
from opdump.layouts.mindspore_sync.files import sanitise
from opdump.records import OpRecord, SkipReason, TensorRecord, shown_shape
from opdump.reports.formats import DumpReport, FindingsReport
from opdump.reports.shown_part import (
    SHOWN,
    added_statistics,
    each_selected,
    file_of,
    selected,
    shown_statistics,
    statistics_of,
)
from opdump.reports.table import Column, Printer
from opdump.step_table import FactsByTemplate, StepTable

if TYPE_CHECKING:
    from opdump.conversion.overflow import OverflowSearch
    from opdump.reports.computational_graph import GraphSearch


class TextFormat:
    """The default format."""

    rows = 20
    tells_failures = False

    def dump(self, report: DumpReport, *, wide: bool) -> None:
        printer = Printer(wide=wide)
        part, catalog = report.part, report.catalog
        if report.watched is not None:
            from opdump.reports.watch import print_watch

            print_watch(printer, report.watched, limit=part.limit)
            return
        if part.op is not None or part.source is not None:
            print_details(printer, catalog, each_selected(catalog, part), report.damaged, limit=part.limit)
        else:
            executions = selected(catalog, part)
            print_runs(printer, catalog)
            if report.run == "latest":
                print_earlier_runs(printer, catalog)
            printer.text()
            print_graph_search(printer, report.search)
            marked = report.search.marked if report.search is not None else frozenset()
            if part.step is None:
                print_steps(printer, catalog, rank=part.rank, limit=part.limit, marked=marked)
                printer.text()
            print_operators(printer, executions, report.damaged, limit=part.limit)
        printer.tell_left_out()

    def findings(self, report: FindingsReport, *, wide: bool) -> None:
        from opdump.reports.findings import print_findings  # imports all checks, which `show` does not need

        print_findings(Printer(wide=wide), report.checked, limit=report.limit)

    def overflows(self, search: OverflowSearch, *, wide: bool) -> None:
        from opdump.reports.overflows import print_overflows

        print_overflows(search, wide=wide)


TEXT = TextFormat()


# The tables of a dump: its runs and steps, a list of operators, or all details of a few operators.

_SPARE = {"avg": 10, "l2norm": 9}
_STATISTICS: Final = (*SHOWN, "nan/inf")


def print_runs(printer: Printer, catalog: Catalog) -> None:
    """One row for each run of each rank."""
    columns = (
        Column("rank", right=True),
        Column("run", right=True),
        Column("started"),
        Column("ended", spare=1),
        Column("framework", spare=3),
        Column("operators", right=True, spare=4),
        Column("captured", right=True, spare=2),
        Column("command", gives_way=True),
    )
    printer.table(columns, [_run_row(run) for run in catalog.runs])
    for run in catalog.runs:
        if run.degraded:
            printer.text(f"rank {run.rank_id}, run {run.id}: {told(run.degraded)}")


def print_earlier_runs(printer: Printer, catalog: Catalog) -> None:
    """If several runs wrote into the directory: which of them is shown, and how to show the others."""
    of_rank: dict[int, list[int]] = {}
    for run in catalog.runs:
        of_rank.setdefault(run.rank_id, []).append(run.id)
    most = max(of_rank.values(), key=len, default=[])
    if len(most) > 1:
        printer.text(
            f"{amounts.count(len(most), 'run')} wrote into this directory; each step is shown from the last run that has it: "
            f"--run {most[0]} shows an earlier one, --run all every run"
        )


def print_graph_search(printer: Printer, search: GraphSearch | None) -> None:
    """Print which model is the computational graph, followed by an empty line; print nothing if there is nothing to report."""
    if search is None:
        return
    from opdump.reports.computational_graph import search_lines

    lines = list(search_lines(search))
    for line in (*lines, "") if lines else ():
        printer.text(line)


def print_steps(
    printer: Printer, catalog: Catalog, *, rank: int | None = None, limit: int = 0, marked: Collection[str] = ()
) -> None:
    """One row for each step of each rank: its content, and how many tensors have NaN or infinities.

    `marked` contains the names of the models that are the computational graph.
    """
    rows: list[list[str]] = []
    left = 0
    for number in catalog.ranks if rank is None else (rank,):
        of_rank = StepRows(catalog, number, marked)
        for step in catalog.steps_of(number):
            if limit and len(rows) >= limit:
                left += 1
            else:
                rows.append(of_rank.row(step))
    columns = (
        Column("rank", right=True),
        Column("step", right=True),
        Column("graphs", spare=2),
        Column("operators", right=True),
        Column("tensors", right=True, spare=1),
        Column("nan/inf", right=True),
        Column("first with nan/inf", gives_way=True),
        Column("left out", gives_way=True, spare=3),
    )
    printer.table(columns, rows)
    if left:
        printer.text(f"... and {amounts.count(left, 'more step')} (--limit 0 shows all)")


def print_operators(printer: Printer, executions: Sequence[Execution], damaged: list[str], *, limit: int) -> None:
    """One row for each operator, with the statistics of its first output, or of its first input if it has no output.

    Unreadable files are added to `damaged`.
    """
    shown = executions[:limit] if limit else executions
    added = added_statistics(record for execution in shown for record in execution.tensors)
    several = {(execution.op.rank_id, execution.op.step) for execution in shown}
    columns = (
        Column("rank", right=True),
        Column("step", right=True),
        Column("graph", right=True, spare=7),
        Column("operator"),
        Column("scope", gives_way=True),
        Column("phase", spare=5),
        Column("source"),
        Column("tensor", spare=8),
        Column("dtype", spare=4),
        Column("shape", spare=2),
        Column("format", spare=6),
        *_statistic_columns(added),
        Column("left out", spare=1),
    )
    rows = [_operator_row(execution, damaged, added, one_place=len(several) == 1) for execution in shown]
    printer.table(columns, rows)
    _print_more(printer, executions, limit)


def print_details(
    printer: Printer, catalog: Catalog, executions: Iterable[Execution], damaged: list[str], *, limit: int
) -> None:
    """All details of an operator: its source, what it read and wrote, and the files with its tensors. Of executions that are alike, the details are
    those of the first with NaN or infinities, or else of the first, and the others follow as a table.

    Alike are executions of the same operator, as in other steps, and of operators with the same shapes whose names differ only in numbers, as in
    the blocks of a network. Unreadable files are added to `damaged`.
    """
    kinds: dict[str, object] = {}
    shown: dict[object, Execution] = {}
    listed: list[Execution] = []
    for execution in executions:
        op, tensors = execution.op, execution.tensors
        kind = kinds.setdefault(op.op_name, (kind_of(op), tuple((each.io, each.slot, each.shape) for each in tensors)))
        if kind not in shown or (has_finding(execution) and not has_finding(shown[kind])):
            shown[kind] = execution
        if not limit or len(listed) <= limit:
            listed.append(execution)
    limit = limit or len(listed) + len(shown)
    first = sorted(shown.values(), key=has_finding, reverse=True)
    for execution in first[:limit]:
        _print_execution(printer, catalog, execution, damaged)
        printer.text()
    others = [execution for execution in listed if not any(execution is each for each in first)]
    if others and len(first) < limit:
        printer.text("Others of the same kind:")
        print_operators(printer, others, damaged, limit=limit - len(first))
    else:
        _print_more(printer, listed, limit)


def _print_more(printer: Printer, executions: Sequence[Execution], limit: int) -> None:
    if limit and len(executions) > limit:
        printer.text(f"... and more (--limit {limit * 5} shows more, --limit 0 shows all)")


def _run_row(run: Run) -> list[str]:
    totals = run.totals
    return [
        str(run.rank_id),
        str(run.id),
        _time(run.started),
        _ended(run),
        " ".join(part for part in (run.framework, run.framework_version, run.device_target) if part),
        f"{totals['executed']:,}" if "executed" in totals else "",
        f"{totals['captured']:,}" if "captured" in totals else "",
        " ".join(_command(run)),
    ]


def _ended(run: Run) -> str:
    if run.ended is not None:
        return _time(run.ended)
    if not run.opdump_version:
        return ""  # other writers do not record it
    return f"not known: {run.end_unknown}" if run.end_unknown else "interrupted, or still running"


def _command(run: Run) -> tuple[str, ...]:
    if not run.command:
        return ()
    program = os.path.basename(run.command[0])
    return ("opdump" if program == "__main__.py" else program, *run.command[1:])


def _time(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds / 1e6).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _operator_row(execution: Execution, damaged: list[str], added: Sequence[str], *, one_place: bool) -> list[str]:
    op = execution.op
    scope, _, name = op.op_name.rpartition("/")
    place = ["", "", ""] if one_place else [str(op.rank_id), str(op.step), graph_word(op.graph_id)]
    row = [*place, name, scope, op.phase, op.line]
    record = next(iter(execution.outputs.values()), None) or next(iter(execution.inputs.values()), None)
    if record is None:
        return [*row, *[""] * (4 + len(_STATISTICS) + len(added)), op.skip]
    more = sum(1 for other in execution.tensors if other.io == record.io) - 1
    tensor = f"{record.io}.{record.slot}" + (f" +{more}" if more else "")
    return [
        *row,
        tensor,
        record.dtype,
        _shape(record),
        _format(record),
        *shown_statistics(statistics_of(record, damaged), added),
        op.skip,
    ]


def _print_execution(printer: Printer, catalog: Catalog, execution: Execution, damaged: list[str]) -> None:
    _print_operator(printer, execution.op)
    if not execution.tensors:
        return
    added = added_statistics(execution.tensors)
    columns = (
        Column("tensor"),
        Column("argument", spare=3),
        Column("dtype", spare=2),
        Column("shape"),
        Column("format", spare=4),
        *_statistic_columns(added),
        Column("made by", gives_way=True),
        Column("left out", spare=1),
    )
    made_by = [_made_by(catalog, record) for record in execution.tensors]
    rows = [
        _tensor_row(record, source, damaged, added)
        for record, (source, _) in zip(execution.tensors, made_by, strict=True)
    ]
    printer.table(columns, rows, indent="  ")
    for record, (_, remark) in zip(execution.tensors, made_by, strict=True):
        if remark:
            printer.text(f"  {record.io}.{record.slot}: {remark}")
    files = (file_of(record) for record in execution.tensors)
    for file in dict.fromkeys(file for file in files if file is not None):  # a dump file contains several tensors
        printer.text(f"  {file}")
    for record in execution.tensors:
        if record.sample:
            printer.text(f"  {_sample(record)}")


def _print_operator(printer: Printer, op: OpRecord) -> None:
    printer.text(op.op_name, style="bold")
    place = f"rank {op.rank_id}, graph {graph_word(op.graph_id)}, step {op.step}, {op.phase}"
    if op.occurrence:
        place += f", execution {op.occurrence + 1} in the step"
    printer.text(f"  {op.kernel or op.op_type}: {place}")
    if op.forward_op:
        printer.text(f"  gradient of {op.forward_op}")
    for line, code in told_lines(op.stack):
        printer.text(f"  {line}  {code}")
    if op.arguments:
        printer.text("  " + ", ".join(f"{name}={value!r}" for name, value in op.arguments.items()))
    if op.skip:
        printer.text(f"  left out: {op.skip}")


def _made_by(catalog: Catalog, record: TensorRecord) -> tuple[str, str]:
    """The maker of an input, as the table shows it, and a note if numpy or a library may have written the memory instead."""
    source = record.source
    if source.startswith(EARLIER_PREFIX):
        return shown_source(source), ""
    if source.startswith(CONSTANT_PREFIX):
        return source, f"{source} was not written by any recorded operator"
    name, _, slot = source.rpartition(":")
    if not slot.isdigit():
        is_input = is_root_input(source)
        plain = source.removeprefix(PARAMETER_PREFIX) if is_input else source
        return plain, f"{plain} is an input of the network" if is_input else ""
    if record.memory is not None and not record.skip:
        from opdump.comparison.differences import was_changed

        op = record.op
        try:
            table = catalog.table(op.step, op.rank_id)
            made = [each for each in executions_of(table) if each.op.op_name == name and each.op.order < op.order]
            is_changed = (
                bool(made) and int(slot) in made[-1].outputs and was_changed(made[-1].outputs[int(slot)], record)
            )
        except OpdumpError:  # a file is unreadable, which the row of its statistics reports
            is_changed = False
        if is_changed:
            return f"changed since {source}", f"changed since {name} by something other than an operator"
    return source, ""


def _tensor_row(record: TensorRecord, source: str, damaged: list[str], added: Sequence[str]) -> list[str]:
    return [
        f"{record.io}.{record.slot}",
        record.argument,
        record.dtype,
        _shape(record),
        _format(record),
        *shown_statistics(statistics_of(record, damaged), added),
        source,
        record.skip,
    ]


def _statistic_columns(added: Sequence[str]) -> list[Column]:
    return [Column(name, right=True, spare=_SPARE.get(name, 0)) for name in (*_STATISTICS, *added)]


def _shape(record: TensorRecord) -> str:
    shape = shown_shape(record.shape)
    return f"{shape} first {record.sample:,}" if record.sample and not record.statistics else shape


def _sample(record: TensorRecord) -> str:
    """What the file of a sample contains, and whether the statistics cover the whole tensor."""
    whole = amounts.count(math.prod(record.shape), "element")
    numbers = "the statistics are those of the whole" if record.statistics else "the statistics are those of the sample"
    return f"{record.io}.{record.slot}: the file holds a sample, the first {record.sample:,} of {whole}; {numbers}"


def _format(record: TensorRecord) -> str:
    """The order of the elements in memory if it is not the framework's own."""
    return "" if record.format == "DefaultFormat" else record.format


# The rows of a dump's table of steps. A step in which all numbers are finite needs no records: numpy checks the numbers, and the
# facts about its template are shared.


@dataclass(frozen=True, slots=True)
class _Ran:
    """The operators of a step, without their numbers."""

    graphs: frozenset[str]
    skipped: Mapping[SkipReason, int]
    """Operators that the step lists and that left no data, by reason."""
    operators: int
    tensors: int
    names: frozenset[str]
    """Operators in the form that `Origins.ran` takes."""
    updates: tuple[Update, ...]


class StepRows:
    """The rows of one rank, requested in the order of its steps. `marked` contains the names of the models that are the
    computational graph.
    """

    def __init__(self, catalog: Catalog, rank: int, marked: Collection[str] = ()) -> None:
        self._catalog = catalog
        self._rank = rank
        self._marked = marked
        self._origins = Origins()
        self._ran = FactsByTemplate(self._ran_in)

    def row(self, step: int) -> list[str]:
        """Rank, step, graphs, operators, tensors, tensors with NaN or infinities, their origin, and what was left out."""
        table = self._catalog.table(step, self._rank)
        ran = self._ran.of(table)
        bad = 0
        if len(table.not_finite) or any(not_finite(table.others.get(place, {})) for place in table.bare):
            for execution in executions_of(table):
                if not execution.op.skip:
                    self._origins.observe(execution.op, execution.tensors)
                    bad += sum(bool(not_finite(record.statistics)) for record in execution.tensors if not record.skip)
        else:
            self._origins.ran(ran.names)
            self._origins.observe_updates(ran.updates)
        return self._row(step, ran, bad, table.counted)

    def _row(self, step: int, ran: _Ran, bad: int, counted: Mapping[SkipReason, int]) -> list[str]:
        skipped = Counter(counted) + Counter(ran.skipped)
        left_out = ", ".join(f"{number:,} {reason}" for reason, number in skipped.most_common())
        counts = [f"{ran.operators:,}", f"{ran.tensors:,}", f"{bad:,}" if bad else ""]
        first_bad = self._origins.origin()[1]
        self._origins.end_step(step)
        return [str(self._rank), str(step), ", ".join(sorted(ran.graphs)), *counts, first_bad, left_out]

    def _ran_in(self, table: StepTable[TensorRecord]) -> _Ran:
        graphs: set[str] = set()
        skipped = Counter[SkipReason]()
        names: set[str] = set()
        updates: list[Update] = []
        operators = tensors = 0
        for op, records in ((execution.op, execution.tensors) for execution in executions_of(table)):
            graphs.add(self._graph_of(op))
            if op.skip:
                skipped[op.skip] += 1
                continue
            shapes = [record.shape for record in records if not record.skip]
            tensors += len(shapes)
            if op.op_type == PARAMETER:
                continue
            operators += 1
            names.add(op.op_name)
            if is_update(op.op_type):
                updates.append((op.op_name, frozenset(shapes)))
        return _Ran(frozenset(graphs), skipped, operators, tensors, frozenset(names), tuple(updates))

    def _graph_of(self, op: OpRecord) -> str:
        if not op.net_name:
            return graph_word(op.graph_id)
        is_computational = self._marked and sanitise(op.net_name) in self._marked
        return f"{op.net_name}/{graph_word(op.graph_id)}" + (" (computational)" if is_computational else "")
