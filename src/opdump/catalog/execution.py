"""One execution of an operator with its tensors: what a catalog gives for each operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from opdump.amounts import repr_of
from opdump.html_table import html_table
from opdump.records import Frame, OpRecord, Phase, SkipReason, TensorRecord, format_statistic, shown_shape

_SHOWN: Final = ("max", "min", "avg", "l2norm", "nan count", "negative inf count", "positive inf count")


@dataclass(frozen=True, slots=True, repr=False)
class Execution:
    """One execution of an operator with its tensors, by slot order. The fields of its `OpRecord` are here too."""

    op: OpRecord
    tensors: tuple[TensorRecord, ...] = ()

    @property
    def inputs(self) -> dict[int, TensorRecord]:
        """Inputs by slot; a slot without a tensor (None, a number) is missing."""
        return {record.slot: record for record in self.tensors if record.io == "input"}

    @property
    def outputs(self) -> dict[int, TensorRecord]:
        """Outputs by slot."""
        return {record.slot: record for record in self.tensors if record.io == "output"}

    @property
    def op_type(self) -> str:
        return self.op.op_type

    @property
    def op_name(self) -> str:
        return self.op.op_name

    @property
    def timestamp(self) -> int:
        return self.op.timestamp

    @property
    def step(self) -> int:
        return self.op.step

    @property
    def net_name(self) -> str:
        return self.op.net_name

    @property
    def graph_id(self) -> int:
        return self.op.graph_id

    @property
    def rank_id(self) -> int:
        return self.op.rank_id

    @property
    def device_id(self) -> int:
        return self.op.device_id

    @property
    def task_id(self) -> int:
        return self.op.task_id

    @property
    def stream_id(self) -> int:
        return self.op.stream_id

    @property
    def order(self) -> int:
        return self.op.order

    @property
    def occurrence(self) -> int:
        return self.op.occurrence

    @property
    def phase(self) -> Phase:
        return self.op.phase

    @property
    def kernel(self) -> str:
        return self.op.kernel

    @property
    def forward_op(self) -> str:
        return self.op.forward_op

    @property
    def stack(self) -> tuple[Frame, ...]:
        return self.op.stack

    @property
    def arguments(self) -> Mapping[str, Any]:
        return self.op.arguments

    @property
    def skip(self) -> SkipReason:
        return self.op.skip

    @property
    def line(self) -> str:
        return self.op.line

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
