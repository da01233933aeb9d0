"""One execution of an operator with its tensors, as a catalog returns it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from opdump.amounts import repr_of
from opdump.html_table import html_table
from opdump.records import OpRecord, TensorRecord, format_statistic, shown_shape

_SHOWN: Final = ("max", "min", "avg", "l2norm", "nan count", "negative inf count", "positive inf count")


Value = TypeVar("Value")


def _of_op(read: Callable[[OpRecord], Value]) -> Value:
    """Return a property of an execution that reads a field of its operator."""
    return cast(Value, property(lambda execution: read(execution.op)))


@dataclass(frozen=True, slots=True, repr=False)
class Execution:
    """One execution of an operator with its tensors, ordered by slot. It also has the fields of its `OpRecord`."""

    op: OpRecord
    tensors: tuple[TensorRecord, ...] = ()

    @property
    def inputs(self) -> dict[int, TensorRecord]:
        """Inputs by slot. Slots without a tensor (None, a number) are missing."""
        return {record.slot: record for record in self.tensors if record.io == "input"}

    @property
    def outputs(self) -> dict[int, TensorRecord]:
        """Outputs by slot."""
        return {record.slot: record for record in self.tensors if record.io == "output"}

    def by_slot(self) -> tuple[dict[int, TensorRecord], dict[int, TensorRecord]]:
        """Return inputs and outputs, each by slot."""
        inputs: dict[int, TensorRecord] = {}
        outputs: dict[int, TensorRecord] = {}
        for record in self.tensors:
            (inputs if record.io == "input" else outputs)[record.slot] = record
        return inputs, outputs

    op_type = _of_op(lambda op: op.op_type)
    op_name = _of_op(lambda op: op.op_name)
    timestamp = _of_op(lambda op: op.timestamp)
    step = _of_op(lambda op: op.step)
    net_name = _of_op(lambda op: op.net_name)
    graph_id = _of_op(lambda op: op.graph_id)
    rank_id = _of_op(lambda op: op.rank_id)
    device_id = _of_op(lambda op: op.device_id)
    task_id = _of_op(lambda op: op.task_id)
    stream_id = _of_op(lambda op: op.stream_id)
    order = _of_op(lambda op: op.order)
    occurrence = _of_op(lambda op: op.occurrence)
    phase = _of_op(lambda op: op.phase)
    kernel = _of_op(lambda op: op.kernel)
    forward_op = _of_op(lambda op: op.forward_op)
    stack = _of_op(lambda op: op.stack)
    arguments = _of_op(lambda op: op.arguments)
    skip = _of_op(lambda op: op.skip)
    line = _of_op(lambda op: op.line)

    def __repr__(self) -> str:
        tensors = f"{len(self.inputs)} in, {len(self.outputs)} out"
        return repr_of("Execution", self.op_name, self.op.place, tensors, self.line)

    def _repr_html_(self) -> str:
        rows = [
            [
                f"{record.io}.{record.slot}",
                record.argument,
                record.dtype,
                shown_shape(record.shape),
                *(format_statistic(record.statistics[name]) if name in record.statistics else "" for name in _SHOWN),
                record.source,
                record.skip,
            ]
            for record in self.tensors
        ]
        headings = ("tensor", "argument", "dtype", "shape", *_SHOWN, "made by", "left out")
        return self.op._repr_html_() + (html_table(headings, rows) if rows else "")
