"""The recorder of failures: the operator that raises is filed, and nothing of those that run well."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from opdump.recorder.operator_recorder import OperatorRecorder, Raised
from opdump.recorder.snapshots import LiveTensor, TensorSnapshot
from opdump.recorder.writers import SupportsExceptions, SupportsFlush
from opdump.records import OpRecord


class FailureRecorder(OperatorRecorder):
    """Files the inputs of an operator that raised, with what it said; all of it is on disk when `failed_op` returns.

    What `before_op` has read stands as it was read, the other inputs are read where it fails: what the operator does not write into
    need not be looked at before.
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
