"""How an operator overflowed, judged by what was taken of its inputs and outputs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from opdump.checks.inspected_tensor import InspectedTensor
from opdump.checks.overflow import OverflowKind, overflow_status
from opdump.plan import DumpPlan
from opdump.recorder.operator_recorder import OverflowDetector
from opdump.recorder.recorder import array_of
from opdump.recorder.snapshots import TensorSnapshot
from opdump.records import OpRecord
from opdump.statistics import SummaryStatistics


def overflow_detector_of(plan: DumpPlan) -> OverflowDetector:
    """The detector of overflow mode: status bits of an operator, 0 where its data prove no overflow of the plan's kinds.

    It looks at tensors with settled statistics, the inputs as they were before the operator ran.
    """
    return DataOverflowDetector(plan.overflow_kinds)


class DataOverflowDetector:
    def __init__(self, kinds: Collection[OverflowKind]) -> None:
        self._kinds = kinds

    def __call__(self, op: OpRecord, taken: Sequence[TensorSnapshot]) -> int:
        return overflow_status(
            op.op_type,
            op.kernel,
            op.arguments,
            [_seen(entry) for entry in taken if entry.io == "input"],
            [_seen(entry) for entry in taken if entry.io == "output"],
            self._kinds,
        )

    def clears(self, op: OpRecord, outputs: Sequence[TensorSnapshot]) -> bool:
        return all(entry.skip == "empty" or _seen(entry).cannot_have_overflowed for entry in outputs)


def _seen(entry: TensorSnapshot) -> InspectedTensor:
    statistics = entry.statistics
    return InspectedTensor(
        dtype=entry.dtype,
        shape=entry.shape,
        argument=entry.argument,
        summary=statistics.summary if isinstance(statistics, SummaryStatistics) else None,
        elements=None if entry.array is None else partial(array_of, entry),
    )
