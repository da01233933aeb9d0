"""The rows of a dump's table of steps. A step stored as columns, in which all numbers are finite, needs no records: numpy checks
the numbers, and the list of operators is shared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from opdump.catalog.catalog import Catalog, Execution
from opdump.checks.not_finite import PARAMETER, Origins, Update, is_update, not_finite
from opdump.graph import graph_word
from opdump.index.columns import BatchColumns, FactsByProgram
from opdump.kernels import SUMMARY_FIELDS
from opdump.layouts.mindspore_sync.names import sanitise
from opdump.records import OpRecord, SkipReason

_NOT_FINITE: Final = slice(SUMMARY_FIELDS.index("nan"), SUMMARY_FIELDS.index("negative_inf") + 1)


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
        self._ran = FactsByProgram(self._ran_in)

    def row(self, step: int) -> list[str]:
        """Rank, step, graphs, operators, tensors, tensors with NaN or infinities, their origin, and what was left out."""
        columns = self._catalog.columns(step, self._rank)
        if columns is not None and not (columns.summaries[:, _NOT_FINITE] > 0).any():
            ran = self._ran.of(columns)
            self._origins.ran(ran.names)
            self._origins.observe_updates(ran.updates)
            return self._row(step, ran, 0, columns.counted)
        executions = list(self._catalog.executions(step=step, rank=self._rank, include_skipped=True))
        bad = 0
        for execution in executions:
            if not execution.op.skip:
                self._origins.observe(execution.op, execution.tensors)
                bad += sum(bool(not_finite(record.statistics)) for record in execution.tensors if not record.skip)
        return self._row(step, self._what_ran(executions), bad, self._catalog.counted(step, self._rank))

    def _row(self, step: int, ran: _Ran, bad: int, counted: Mapping[SkipReason, int]) -> list[str]:
        skipped = Counter(counted) + Counter(ran.skipped)
        left_out = ", ".join(f"{number:,} {reason}" for reason, number in skipped.most_common())
        counts = [f"{ran.operators:,}", f"{ran.tensors:,}", f"{bad:,}" if bad else ""]
        first_bad = self._origins.origin()[1]
        self._origins.end_step(step)
        return [str(self._rank), str(step), ", ".join(sorted(ran.graphs)), *counts, first_bad, left_out]

    def _ran_in(self, columns: BatchColumns) -> _Ran:
        return self._what_ran(self._catalog.executions(step=columns.step, rank=self._rank, include_skipped=True))

    def _what_ran(self, executions: Iterable[Execution]) -> _Ran:
        graphs: set[str] = set()
        skipped = Counter[SkipReason]()
        names: set[str] = set()
        updates: list[Update] = []
        operators = tensors = 0
        for op, records in ((execution.op, execution.tensors) for execution in executions):
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
