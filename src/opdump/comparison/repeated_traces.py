"""A step that runs the operators of one that was read before: its nodes are made when they are looked at, of those of the other and of columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, overload

import numpy as np

from opdump.comparison.nodes import Node
from opdump.comparison.step_rows import StepRows
from opdump.comparison.trace import Trace
from opdump.comparison.value_columns import Columns, Floats, Places, columns_of_summaries
from opdump.index.columns import BatchColumns, Program
from opdump.kernels import Summary
from opdump.records import OpRecord, StatisticValue, TensorRecord
from opdump.statistics import SummaryStatistics


@dataclass(frozen=True, slots=True, eq=False)
class StepNumbers:
    """What is other in each of the steps that run the same: in the order of the index."""

    step: int
    timestamps: Places
    arguments: Sequence[Mapping[str, Any]]
    summaries: Floats

    @classmethod
    def of(cls, batch: BatchColumns) -> StepNumbers:
        """Those of a step that is one batch."""
        return cls(batch.step, batch.timestamps, batch.pattern.arguments, batch.summaries)


@dataclass(frozen=True, eq=False)
class Model:
    """A step that others repeat, and where the index has what it is made of."""

    trace: Trace
    places: Sequence[int]
    """Of each node that of its operator."""
    rows: Places
    """Of each tensor that of its summary, in the order of `Trace.columns`."""
    finals: Mapping[str, tuple[int, int]]
    """Of each parameter at the end of the step the place of its record, and the row of its summary."""

    @classmethod
    def of(cls, trace: Trace, program: Program, numbers: StepNumbers) -> Model | None:
        """What repeats the trace of a step that is one batch; None where it is not made of that alone."""
        places = {time: place for place, time in enumerate(numbers.timestamps.tolist())}
        rows = {slot: row for row, slot in enumerate(program.slots)}
        of_nodes = [places.get(node.op.timestamp, -1) for node in trace.nodes]
        of_tensors = [
            *(rows.get((of_nodes[index], "output", slot), -1) for index, slot in trace.rows.outputs),
            *(rows.get((of_nodes[index], "input", slot), -1) for index, slot in trace.rows.inputs),
        ]
        finals = {}
        for name, record in trace.finals.items():
            place = places.get(record.op.timestamp, -1)
            finals[name] = place, rows.get((place, record.io, record.slot), -1)
        if -1 in of_nodes or -1 in of_tensors or any(-1 in found for found in finals.values()):
            return None
        return cls(trace, of_nodes, np.array(of_tensors, np.intp), finals)

    @cached_property
    def sizes(self) -> Floats:
        """How many elements each tensor has, in the order of `Trace.columns`."""
        return self.trace.columns.sizes

    @cached_property
    def captured(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which tensors were captured."""
        records = [
            *(record for node in self.trace.nodes for record in node.outputs.values()),
            *(record for node in self.trace.nodes for record in node.inputs.values()),
        ]
        return np.array([not record.skip for record in records], bool)


@dataclass(frozen=True, eq=False)
class RepeatedTrace(Trace):
    """A step that repeats another."""

    model: Model = field(kw_only=True)
    numbers: StepNumbers = field(kw_only=True)

    @cached_property
    def rows(self) -> StepRows:
        """Those of the step that is repeated."""
        return self.model.trace.rows

    @cached_property
    def columns(self) -> Columns:
        """The statistics of all outputs, then of all inputs."""
        return columns_of_summaries(
            self.numbers.summaries[self.model.rows], self.model.sizes, captured=self.model.captured
        )


def repeated(model: Model, numbers: StepNumbers) -> RepeatedTrace:
    """The step with these numbers."""
    nodes, finals = _Nodes(model, numbers), _Finals(model, numbers)
    return RepeatedTrace(numbers.step, model.trace.rank, nodes, finals, model=model, numbers=numbers)


class _Nodes(Sequence[Node]):
    def __init__(self, model: Model, numbers: StepNumbers) -> None:
        self._model, self._numbers = model, numbers
        self._made: dict[int, Node] = {}

    def __len__(self) -> int:
        return len(self._model.trace.nodes)

    @overload
    def __getitem__(self, index: int) -> Node: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Node]: ...
    def __getitem__(self, index: int | slice) -> Node | Sequence[Node]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        node = self._made.get(place)
        if node is None:
            node = self._made[place] = self._make(self._model.trace.nodes[place])
        return node

    def _make(self, like: Node) -> Node:
        model, numbers = self._model, self._numbers
        op = _executed(like.op, model.places[like.index], numbers)
        of_output, of_input = model.trace.rows.of_output, model.trace.rows.of_input
        inputs = {
            slot: _recorded(record, op, int(model.rows[of_input[like.index, slot]]), numbers)
            for slot, record in like.inputs.items()
        }
        outputs = {
            slot: _recorded(record, op, int(model.rows[of_output[like.index, slot]]), numbers)
            for slot, record in like.outputs.items()
        }
        return replace(like, op=op, inputs=inputs, outputs=outputs)


class _Finals(Mapping[str, TensorRecord]):
    def __init__(self, model: Model, numbers: StepNumbers) -> None:
        self._model, self._numbers = model, numbers

    def __len__(self) -> int:
        return len(self._model.finals)

    def __iter__(self) -> Iterator[str]:
        return iter(self._model.finals)

    def __getitem__(self, name: str, /) -> TensorRecord:
        place, row = self._model.finals[name]
        record = self._model.trace.finals[name]
        return _recorded(record, _executed(record.op, place, self._numbers), row, self._numbers)


def _executed(op: OpRecord, place: int, numbers: StepNumbers) -> OpRecord:
    times, arguments = numbers.timestamps, numbers.arguments
    return replace(op, step=numbers.step, timestamp=int(times[place]), arguments=arguments[place])


def _recorded(record: TensorRecord, op: OpRecord, row: int, numbers: StepNumbers) -> TensorRecord:
    summary = Summary(*numbers.summaries[row].tolist())
    nothing: Mapping[str, StatisticValue] = {}
    has_none = summary.count != summary.count
    return replace(record, op=op, statistics=nothing if has_none else SummaryStatistics(summary))
