"""The recorder of watched memory. It writes the outputs of watched operators as they are after other operators ran, and nothing of those
operators.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from opdump.recorder.capture_errors import loses_operator_on_error
from opdump.recorder.operator_recorder import Finished, OperatorRecorder, Raised
from opdump.recorder.snapshots import LiveTensor, TensorSnapshot
from opdump.records import OpRecord


class WatchRecorder(OperatorRecorder):
    """Writes snapshots of watched memory. Operators that run are only counted."""

    @loses_operator_on_error
    def watch_begins(self, op: OpRecord, outputs: Iterable[LiveTensor]) -> None:
        """Record the digests of the outputs of a watched operator in the index, right after it ran. No file is written."""
        if self.is_over:
            return
        with self.lock:
            taken = self._read(op, "output", outputs)
            self._settle(taken)
            for entry in taken:
                entry.skip = entry.skip or "not watched"
            self._enter(op, taken, [None] * len(taken))

    @loses_operator_on_error
    def watched(self, op: OpRecord, outputs: Iterable[LiveTensor]) -> None:
        """Write the current content of the outputs of a watched operator; `op` has the name of the snapshot (`WatchedLook`)."""
        if self.is_over:
            return
        with self.lock:
            taken = self._read(op, "output", outputs)
            self._settle(taken)
            self._file(Finished(op, taken))

    def _begins(
        self, op: OpRecord, inputs: Iterable[LiveTensor], changes: Collection[str] | None
    ) -> list[TensorSnapshot]:
        return []

    def _ran(self, op: OpRecord, taken: list[TensorSnapshot], outputs: Iterable[LiveTensor]) -> None:
        self._drop()

    def _raised(self, raised: Raised, taken: list[TensorSnapshot]) -> None:
        self._drop()

    def _step_filed(self, steps: set[int], ops: Sequence[OpRecord], entries: Sequence[TensorSnapshot]) -> None:
        super()._step_filed(steps, ops, entries)
        self.tally.executed -= len(ops)  # these are snapshots; the operators themselves are counted elsewhere
