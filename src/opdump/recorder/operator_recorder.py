"""The recorder of whole operators: the data of an operator stay in memory until it has run, and are written together.

Layouts with one file per operator need it, and so does every mode that knows only afterwards whether to keep an operator.
`OverflowRecorder`, `FailureRecorder` and `WatchRecorder` decide what happens to an operator that has run or failed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from opdump.checks.overflow import OverflowStatus
from opdump.plan import DumpPlan
from opdump.recorder.capture_errors import loses_operator_on_error, stops_capture_on_error
from opdump.recorder.recorder import Recorder
from opdump.recorder.snapshots import LiveTensor, Reader, TensorSnapshot, settle
from opdump.recorder.writers import StepWriter, SupportsHistory, SupportsOperatorFiles, SupportsOverflows
from opdump.records import IO, OpRecord
from opdump.step_columns import OperatorSequence


class Finished(NamedTuple):
    """An operator that has run."""

    op: OpRecord
    taken: list[TensorSnapshot]
    status: OverflowStatus | None = None


class Raised(NamedTuple):
    """An operator that failed."""

    op: OpRecord
    opened: OpRecord
    """The record that `before_op` received."""
    error: BaseException
    inputs: Iterable[LiveTensor]


class OperatorRecorder(Recorder):
    """Writes operators one by one, each after it has run."""

    def __init__(self, plan: DumpPlan, writer: StepWriter, reader: Reader) -> None:
        super().__init__(plan, writer, reader)
        self._mode = plan.mode
        self._open: dict[int, list[TensorSnapshot]] = {}
        """What was read of the running operators, by identity."""
        self._held: list[Finished] = []
        """Operators that have run and whose step is not known yet."""
        self._held_bytes = 0
        """Bytes of the elements in `_held`."""
        self._graphs_ran: set[int] = set()
        """Graphs that ran an operator in this step, even if most operators are dropped."""

    @property
    def takes_blocks(self) -> bool:
        """Whether `take_block` may be called: only summaries are recorded, and every operator that ran is written."""
        return super().takes_blocks and self._mode.files_selected and not (self.keeps_back or self._open)

    @stops_capture_on_error
    def take_block(self, sequence: OperatorSequence, step: int, timestamps: Sequence[int], tensors: Any) -> bool:
        with self.lock:
            # All operators of a block belong to one graph.
            self._graphs_ran.update(op.graph_id for op in sequence.ops[:1])
            self._sort()
            return super().take_block(sequence, step, timestamps, tensors)

    @loses_operator_on_error
    def _begin_op(self, op: OpRecord, inputs: Iterable[LiveTensor], changes: Collection[str] | None) -> None:
        if self.is_over:
            return
        with self.lock:
            if self._ops_in_parts + len(self._ops) >= self._most_ops:
                self.end_step(op.step, is_part=True)
            self._graphs_ran.add(op.graph_id)
            self._open[id(op)] = self._begins(op, inputs, changes)

    @loses_operator_on_error
    def after_op(self, op: OpRecord, outputs: Iterable[LiveTensor]) -> None:
        """Read the outputs of an operator that has run, and write the operator if it is wanted."""
        if self.is_over:
            return
        with self.lock:
            self._ran(op, self._open.pop(id(op), []), outputs)

    @loses_operator_on_error
    def failed_op(
        self, op: OpRecord, error: BaseException, inputs: Iterable[LiveTensor], opened: OpRecord | None = None
    ) -> None:
        """Note that an operator raised. `opened` is the record that `before_op` received, if it differs from `op`: an adapter may know the name of an
        operator only after the failure.
        """
        if self.is_over:
            return
        with self.lock:
            taken = self._open.pop(id(opened or op), [])
            for entry in taken:
                entry.op = op
            self._raised(Raised(op, opened or op, error, inputs), taken)

    def abandoned_op(self, op: OpRecord) -> None:
        """Forget what was read for a call that turned out to be no operator, or that was cut off."""
        with self.lock:
            self._open.pop(id(op), None)
            self._forget_rows()

    def skip_op(self, op: OpRecord) -> None:
        """List an operator that leaves no data, or only count it if the mode writes few operators."""
        if self._mode.lists_skipped:
            super().skip_op(op)
        else:
            self.count_op(op.skip)

    @stops_capture_on_error
    def place(self) -> None:
        with self.lock:
            waited = self._place is not None
            super().place()
            if waited and not self.is_deferring:
                self.release()

    @stops_capture_on_error
    def release(self) -> None:
        with self.lock:
            if self._held:
                self.place()
            held, self._held, self._held_bytes = self._held, [], 0
            for finished in held:
                self._file(finished)
            super().release()

    def discard(self) -> None:
        with self.lock:
            self._held, self._held_bytes = [], 0
            super().discard()

    def _begins(
        self, op: OpRecord, inputs: Iterable[LiveTensor], changes: Collection[str] | None
    ) -> list[TensorSnapshot]:
        """Return what is read of an operator that is about to run."""
        return self._read(op, "input", inputs) if self.plan.inputs else []

    def _ran(self, op: OpRecord, taken: list[TensorSnapshot], outputs: Iterable[LiveTensor]) -> None:
        if self.plan.outputs:
            taken += self._read(op, "output", outputs)
        self._close(Finished(op, taken))

    def _raised(self, raised: Raised, taken: list[TensorSnapshot]) -> None:
        """Write what was read before an operator failed."""
        if taken:
            self._close(Finished(raised.op, taken))

    def _change_ops(self, change: Callable[[OpRecord], OpRecord]) -> None:
        super()._change_ops(change)
        changed = []
        for finished in self._held:
            other = change(finished.op)
            for entry in finished.taken:
                entry.op = other
            changed.append(finished._replace(op=other))
        self._held = changed

    def _lose(self) -> None:
        unfiled = [(finished.op, finished.taken) for finished in self._held]
        unfiled += [(taken[0].op, taken) for taken in self._open.values() if taken]
        self._held, self._held_bytes, self._open = [], 0, {}
        self.tally.lost([op for op, _ in unfiled], sum(len(taken) for _, taken in unfiled))
        super()._lose()

    def _end_step(self, step: int) -> None:
        ran, self._graphs_ran = self._graphs_ran, set()
        if ran and isinstance(self._writer, SupportsHistory):
            self._writer.graphs_ran(step, ran)
        # Rows of this step are cleared below, and operators running in other threads still use some of them.
        if any(self._open.values()):
            self._settle([entry for taken in self._open.values() for entry in taken])
        self._sort()
        super()._end_step(step)

    def _sort(self) -> None:
        """Sort the operators since the last block. A call with others inside is added after them, but began earlier."""
        self._ops.sort(key=lambda op: op.timestamp)

    def _read(
        self, op: OpRecord, io: IO, lives: Iterable[LiveTensor], reader: Reader | None = None
    ) -> list[TensorSnapshot]:
        if self._checks is not None and reader is None:
            lives = self._checks.look(op, io, lives)
        reader = reader or self.reader
        found = []
        for slot, argument, tensor, source, skip in lives:
            taken = reader.skip(tensor, skip) if skip else reader.take(tensor)
            taken.belongs(op, io, slot, argument, source)
            if taken.elements is not None:
                taken.elements.own()
            found.append(taken)
        return found

    def _settle(self, taken: Sequence[TensorSnapshot]) -> None:
        """Set the statistics now, for code that examines an operator before the end of the step."""
        self.reader.finish_step()
        settle(self.reader, taken, self._statistics)
        for entry in taken:
            entry.settle_others()
        self._forget_rows()

    def _drop(self) -> None:
        """Count an operator that has run and is not wanted."""
        self._counted[self._mode.dropped] += 1
        self._forget_rows()

    def _forget_rows(self) -> None:
        # Rows are still needed for operators that run in other threads or wait for the end of the step.
        if not self._open and not self._held and not self._parts and not self.taken:
            self.reader.clear()

    def _close(self, finished: Finished) -> None:
        elements = [entry.elements for entry in finished.taken if entry.elements is not None]
        if self.plan.saves_tensors and any(each.are_pending for each in elements):
            self.reader.finish_step()
        if self.keeps_back:
            self._held.append(finished)
            self._held_bytes += sum(entry.held_bytes for entry in finished.taken)
            if self._held_bytes > self._most_held:
                self.place()
                self.release()
        else:
            self._file(finished)

    def _file(self, finished: Finished) -> None:
        op, taken, status = finished
        if not (self.plan.inputs and self.plan.outputs):
            taken = [entry for entry in taken if (self.plan.inputs if entry.io == "input" else self.plan.outputs)]
        self._enter(op, taken, self._filed(op, taken))
        if status is not None and isinstance(self._writer, SupportsOverflows):
            self._writer.write_overflow(op, status)
        if self.plan.save_kernel_args:
            self._files.write_arguments(op)

    def _filed(self, op: OpRecord, taken: Sequence[TensorSnapshot]) -> Sequence[str | None]:
        """Pass the elements of an operator to the layout. Return the file of each tensor, or None for a tensor without one."""
        if not self.plan.saves_tensors:
            return [None] * len(taken)
        if self.plan.sample_num is not None:
            for entry in taken:
                if entry.elements is not None:
                    entry.elements.cut(self.plan.sample_num)
        if not self.bounds.has_room(
            op.step, sum(entry.elements.nbytes for entry in taken if entry.elements is not None)
        ):
            return [None] * len(taken)
        records = [entry.record() for entry in taken]
        if isinstance(self._writer, SupportsOperatorFiles):
            # A writer that failed returns nothing.
            return self._writer.write_operator(op, records) or [None] * len(records)
        if self._files.writer is None:
            return [None] * len(records)
        return [None if record.payload is None else self._files.writer.write_payload(record) for record in records]

    def _enter(self, op: OpRecord, taken: Sequence[TensorSnapshot], files: Sequence[str | None]) -> None:
        """Add an operator, and the files of its tensors, to what goes into the index at the end of the step."""
        if self.is_over:
            self.tally.lost([op], len(taken))
            return
        self._ops.append(op)
        self.taken += taken
        for entry, file in zip(taken, files, strict=True):
            if entry.elements is not None:
                entry.elements.filed(file)
