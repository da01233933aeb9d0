"""The recorder of failures. It writes the operator that raises, and nothing of operators that succeed."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from opdump.recorder.operator_recorder import OperatorRecorder, Raised
from opdump.recorder.snapshots import LiveTensor, TensorSnapshot
from opdump.recorder.writers import SupportsExceptions, SupportsFlush
from opdump.records import OpRecord


class FailureRecorder(OperatorRecorder):
    """Writes the inputs of an operator that raised, and its error message. When `failed_op` returns, all of it is on disk.

    Inputs that `before_op` has read are kept. The other inputs are read after the failure, because the operator does not write into them.
    """

    def _begins(
        self, op: OpRecord, inputs: Iterable[LiveTensor], changes: Collection[str] | None
    ) -> list[TensorSnapshot]:
        return self._read(op, "input", inputs)

    def _ran(self, op: OpRecord, taken: list[TensorSnapshot], outputs: Iterable[LiveTensor]) -> None:
        self._drop()

    def _raised(self, raised: Raised, taken: list[TensorSnapshot]) -> None:
        op, _, error, inputs = raised
        known = {entry.slot for entry in taken}
        taken += self._read(op, "input", (live for live in inputs if live[0] not in known))
        taken.sort(key=lambda entry: entry.slot)
        self._settle(taken)
        self.release()
        if isinstance(self._writer, SupportsExceptions):
            records = [entry.record() for entry in taken]
            files = self._writer.write_exception(op, records, f"{type(error).__name__}: {error}")
            files = files or [None] * len(records)
        else:
            files = self._filed(op, taken)
        self._enter(op, taken, files)
        self.end_step(op.step)
        if isinstance(self._writer, SupportsFlush):
            self._writer.flush()
