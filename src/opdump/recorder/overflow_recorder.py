"""The recorder of overflows. Each operator is judged after it has run, from its inputs and outputs, and written as a whole if it overflowed.

For nearly every operator the outputs suffice: if all of them are finite, no input can make it an overflow. Inputs are therefore not read before the
operator runs, except those that it writes into, and no elements are copied until an operator is a suspect.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from opdump.checks.overflow import OverflowKind, OverflowStatus, overflow_kind, overflow_status
from opdump.checks.tensor_checks import InspectedTensor
from opdump.plan import DumpPlan
from opdump.recorder.operator_recorder import Finished, OperatorRecorder, Raised
from opdump.recorder.snapshots import LiveTensor, Reader, TensorSnapshot, settle
from opdump.recorder.writers import StepWriter
from opdump.records import OpRecord
from opdump.statistics import SummaryStatistics

OverflowDetector = Callable[[OpRecord, Sequence[TensorSnapshot]], OverflowStatus | None]
"""Return how an operator that has run overflowed, or None if it did not. The snapshots have statistics and elements."""


@runtime_checkable
class SupportsLazyInputs(Protocol):
    """A reader that can summarise a tensor without copying its elements."""

    def without_elements(self) -> Reader:
        """Return a reader that takes only summaries and has its own tables."""

    def memory_of(self, tensor: Any) -> object:
        """Return a key that is equal for tensors that share memory, or None if that is unknown."""


@runtime_checkable
class SupportsClearing(Protocol):
    """A detector that can often decide from the outputs only."""

    def clears(self, op: OpRecord, outputs: Sequence[TensorSnapshot]) -> bool:
        """Return whether the statistics of the outputs prove that the operator did not overflow."""


class OverflowRecorder(OperatorRecorder):
    """Writes the operators that overflow."""

    def __init__(self, plan: DumpPlan, writer: StepWriter, reader: Reader, detector: OverflowDetector) -> None:
        super().__init__(plan, writer, reader)
        self._overflows = 0
        self._detector = detector
        self._summaries_only: Reader | None = None
        """Summarises outputs before anything is copied, if the detector supports it."""
        self._clearing: SupportsClearing | None = None
        self._memory_of: Callable[[Any], object] | None = None
        able: object = detector  # mypy: a plain function has no methods; other callables may have them
        if isinstance(able, SupportsClearing) and isinstance(reader, SupportsLazyInputs):
            self._summaries_only, self._clearing, self._memory_of = reader.without_elements(), able, reader.memory_of
        self._later: dict[int, list[LiveTensor]] = {}
        """Inputs of running operators that do not change while the operator runs."""

    def abandoned_op(self, op: OpRecord) -> None:
        with self.lock:
            self._later.pop(id(op), None)
            super().abandoned_op(op)

    def _begins(
        self, op: OpRecord, inputs: Iterable[LiveTensor], changes: Collection[str] | None
    ) -> list[TensorSnapshot]:
        if changes is not None and self._memory_of is not None:
            inputs, self._later[id(op)] = _split_by_aliasing(inputs, changes, self._memory_of)
        return self._read(op, "input", inputs)

    def _ran(self, op: OpRecord, taken: list[TensorSnapshot], outputs: Iterable[LiveTensor]) -> None:
        later = self._later.pop(id(op), None)
        if later is not None:
            outputs = list(outputs)
            if self._is_cleared(op, outputs):
                self._drop()
                return
            taken += self._read(op, "input", later)
            taken.sort(key=lambda entry: entry.slot)
        taken += self._read(op, "output", outputs)
        status = self._detected(op, taken)
        if status is None:
            self._drop()
        else:
            self._close(Finished(op, taken, status))

    def _raised(self, raised: Raised, taken: list[TensorSnapshot]) -> None:
        self._later.pop(id(raised.opened), None)
        self._drop()

    def _lose(self) -> None:
        self._later = {}
        super()._lose()

    def _is_cleared(self, op: OpRecord, outputs: Iterable[LiveTensor]) -> bool:
        """Return whether the outputs prove that the operator did not overflow."""
        summaries_only, detector = self._summaries_only, self._clearing
        assert summaries_only is not None, "inputs are deferred only if the reader has summaries"
        assert detector is not None, "the detector is set together with summaries_only"
        if self._has_enough():
            return True
        taken = self._read(op, "output", outputs, summaries_only)
        summaries_only.finish_step()
        settle(summaries_only, taken)
        summaries_only.clear()
        return detector.clears(op, taken)

    def _has_enough(self) -> bool:
        """Return whether `overflow_number` operators have overflowed already."""
        most = self.plan.overflow_number
        return bool(most) and self._overflows >= most

    def _detected(self, op: OpRecord, taken: list[TensorSnapshot]) -> OverflowStatus | None:
        if self._has_enough():
            return None
        self._settle(taken)
        status = self._detector(op, taken)
        self._overflows += status is not None
        return status


class DataOverflowDetector:
    """Finds overflows of the given kinds from the data: tensors with settled statistics, and the inputs as they were before the operator ran."""

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


class _Inputs(NamedTuple):
    """The inputs of an operator that is about to run."""

    now: list[LiveTensor]
    """Inputs that may change while the operator runs."""
    later: list[LiveTensor]
    """Inputs that the operator leaves unchanged."""


def _split_by_aliasing(
    inputs: Iterable[LiveTensor], changes: Collection[str], memory_of: Callable[[Any], object]
) -> _Inputs:
    """Split the inputs by whether they share memory with an argument in `changes`, into which the operator writes."""
    lives = list(inputs)
    if not changes:
        return _Inputs([], lives)
    memories = [memory_of(live[2]) for live in lives]
    written = {
        memory
        for (_, argument, *_), memory in zip(lives, memories, strict=True)
        if argument.partition("[")[0] in changes
    }
    if None in written:
        return _Inputs(lives, [])
    written.add(None)
    now: list[LiveTensor] = []
    later: list[LiveTensor] = []
    for live, memory in zip(lives, memories, strict=True):
        (now if memory in written else later).append(live)
    return _Inputs(now, later)
