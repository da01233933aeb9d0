"""The detector of overflow mode: how an operator overflowed, by what was taken of its inputs and outputs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from opdump.checks.inspected_tensor import InspectedTensor
from opdump.checks.overflow import OverflowKind, OverflowStatus, overflow_kind, overflow_status
from opdump.recorder.snapshots import TensorSnapshot
from opdump.records import OpRecord
from opdump.statistics import SummaryStatistics


class DataOverflowDetector:
    """Finds the overflows of these kinds that data prove: of tensors with settled statistics, the inputs as they were before the
    operator ran.
    """

    def __init__(self, kinds: Collection[OverflowKind]) -> None:
        self._kinds = kinds

    def __call__(self, op: OpRecord, taken: Sequence[TensorSnapshot]) -> OverflowStatus | None:
        bits = overflow_status(
            op.op_type,
            op.kernel,
            op.arguments,
            [_seen(entry) for entry in taken if entry.io == "input"],
            [_seen(entry) for entry in taken if entry.io == "output"],
            self._kinds,
        )
        return OverflowStatus(bits, overflow_kind(op.op_type, op.arguments)) if bits else None

    def clears(self, op: OpRecord, outputs: Sequence[TensorSnapshot]) -> bool:
        return all(entry.skip == "empty" or _seen(entry).cannot_have_overflowed for entry in outputs)


def _seen(entry: TensorSnapshot) -> InspectedTensor:
    statistics, elements = entry.statistics, entry.elements
    return InspectedTensor(
        dtype=entry.dtype,
        shape=entry.shape,
        argument=entry.argument,
        summary=statistics.summary if isinstance(statistics, SummaryStatistics) else None,
        elements=None if elements is None else elements.on_host,
    )
