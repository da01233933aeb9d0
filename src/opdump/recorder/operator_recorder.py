"""The recorder of whole operators: what was taken of one stays in memory until it has run, and is filed, or dropped, as a whole.

Layouts whose files hold an operator need it, and every mode that knows only afterwards whether an operator is wanted: it
overflowed, it failed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from opdump.plan import DumpPlan
from opdump.recorder.lazy_inputs import SupportsClearing, SupportsLazyInputs, split_by_aliasing
from opdump.recorder.own_errors import told_where_it_stops
from opdump.recorder.recorder import HELD_BYTES, MOST_OPS, Recorder, array_of, held_bytes
from opdump.recorder.snapshots import LiveTensor, Reader, TensorSnapshot
from opdump.recorder.writers import (
    StepWriter,
    SupportsExceptions,
    SupportsFlush,
    SupportsHistory,
    SupportsOperatorFiles,
    SupportsOverflows,
)
from opdump.records import IO, HostPayload, OpRecord, SkipReason, TensorRecord, record_of
from opdump.statistics import SummaryStatistics

OverflowDetector = Callable[[OpRecord, Sequence[TensorSnapshot]], int]
"""Status bits of how an operator that has run overflowed; 0 where it did not. Statistics and elements are there to look at."""


_DROPS: Mapping[str, SkipReason] = {"exception": "no exception", "watch": "not watched"}


class _Finished(NamedTuple):
    """An operator that has run."""

    op: OpRecord
    taken: list[TensorSnapshot]
    status: int = 0


class OperatorRecorder(Recorder):
    """Files operators one by one, after each has run."""

    def __init__(
        self, plan: DumpPlan, writer: StepWriter, reader: Reader, detector: OverflowDetector | None = None
    ) -> None:
        super().__init__(plan, writer, reader)
        self.overflows = 0
        """Operators that overflowed so far."""
        self.failures = 0
        """Operators that failed so far."""
        self._detector = detector
        self._open: dict[int, list[TensorSnapshot]] = {}
        """What was taken of operators that run now, by identity."""
        self._held: list[_Finished] = []
        """Operators that have run and of which nobody knows yet to which step they belong."""
        self._graphs_ran: set[int] = set()
        """Graphs of which an operator ran in this step; most operators are dropped."""
        self._drops: SkipReason = _DROPS.get(plan.captures, "no overflow")
        self._summaries_only: Reader | None = None
        """Looks at outputs before anything is copied, where the detector can make use of it."""
        self._clearing: SupportsClearing | None = None
        """The detector, where it can."""
        self._memory_of: Callable[[Any], object] | None = None
        """The reader's, where it can."""
        able: object = detector  # a plain function has no methods, says mypy; another callable may
        if isinstance(able, SupportsClearing) and isinstance(reader, SupportsLazyInputs):
            self._summaries_only, self._clearing, self._memory_of = reader.without_elements(), able, reader.memory_of
        self._later: dict[int, list[LiveTensor]] = {}
        """Inputs of operators that run now, and that stay what they are."""

    @told_where_it_stops
    def before_op(self, op: OpRecord, inputs: Iterable[LiveTensor], changes: Collection[str] | None = None) -> OpRecord:
        """Reads the inputs of an operator that is about to run.

        `changes` names the arguments that the operator writes into; None where that is not known. What it leaves as it is may be read
        when it has run.
        """
        if self.is_over:
            return op
        with self._lock:
            if len(self._ops) >= MOST_OPS:
                self.end_step(op.step)
            self._graphs_ran.add(op.graph_id)
            wanted = self.plan.inputs or self.plan.captures != "data"
            if wanted and changes is not None and self._memory_of is not None:
                inputs, self._later[id(op)] = split_by_aliasing(inputs, changes, self._memory_of)
            self._open[id(op)] = self._read(op, "input", inputs) if wanted else []
        return op

    @told_where_it_stops
    def after_op(self, op: OpRecord, outputs: Iterable[LiveTensor]) -> None:
        """Reads the outputs of an operator that has run, and files the operator if it is wanted."""
        if self.is_over:
            return
        with self._lock:
            taken = self._open.pop(id(op), [])
            later = self._later.pop(id(op), None)
            if self.plan.captures in ("exception", "watch"):
                self._drop(self._drops)
                return
            if self.plan.captures == "overflow" and self._detector is None:
                raise ValueError("overflow mode needs a detector; make the recorder with make_recorder")
            if later is not None:
                outputs = list(outputs)
                if self._is_cleared(op, outputs):
                    self._drop("no overflow")
                    return
                taken += self._read(op, "input", later)
                taken.sort(key=lambda entry: entry.slot)
            if self.plan.outputs or self._detector is not None:
                taken += self._read(op, "output", outputs)
            status = 0
            if self._detector is not None:
                status = self._detected(op, taken, self._detector)
                if status == 0:
                    self._drop("no overflow")
                    return
            self._close(_Finished(op, taken, status))

    @told_where_it_stops
    def failed_op(
        self, op: OpRecord, error: BaseException, inputs: Iterable[LiveTensor], opened: OpRecord | None = None
    ) -> None:
        """Files the inputs of an operator that raised, with what it said; all of it is on disk when this returns.

        What `before_op` has read stands as it was read; the others among `inputs` are read now: what the operator does not
        write into need not be looked at before it fails. `opened` is the record that `before_op` was given, where that was another
        one: an adapter may name an operator only once it failed. In other modes than that of failures, the file of a wanted operator
        holds what was read before.
        """
        if self.is_over:
            return
        with self._lock:
            taken = self._open.pop(id(opened or op), [])
            self._later.pop(id(opened or op), None)
            for entry in taken:
                entry.op = op
            if self.plan.captures == "data":
                if taken:
                    self._close(_Finished(op, taken))
                return
            if self.plan.captures != "exception":
                self._drop(self._drops)
                return
            known = {entry.slot for entry in taken}
            taken += self._read(op, "input", (live for live in inputs if live[0] not in known))
            taken.sort(key=lambda entry: entry.slot)
            self.failures += 1
            self._reader.finish_step()
            self._settle(taken)
            self.release()
            if isinstance(self._writer, SupportsExceptions):
                records = [_record(entry) for entry in taken]
                files = self._writer.write_exception(op, records, f"{type(error).__name__}: {error}")
                files = files or [None] * len(records)
            else:
                files = self._files(op, taken)
            self._enter(op, taken, files)
            self.end_step(op.step)
            if isinstance(self._writer, SupportsFlush):
                self._writer.flush()

    def abandoned_op(self, op: OpRecord) -> None:
        """Forgets what was read of an operator that turned out to be none, or that somebody cut off."""
        with self._lock:
            self._open.pop(id(op), None)
            self._later.pop(id(op), None)
            self._forget_rows()

    def skip_op(self, op: OpRecord) -> None:
        """Lists an operator that leaves no data; in the modes that file few operators it is counted alone."""
        if self.plan.captures == "data":
            super().skip_op(op)
        else:
            self.count_op(op.skip)

    @told_where_it_stops
    def watch_begins(self, op: OpRecord, outputs: Iterable[LiveTensor]) -> None:
        """Notes in the index what the outputs of a watched operator were when it had run: their digests, and no file."""
        if self.is_over:
            return
        with self._lock:
            taken = self._read(op, "output", outputs)
            self._reader.finish_step()
            self._settle(taken)
            for entry in taken:
                entry.skip = entry.skip or "not watched"
            self._enter(op, taken, [None] * len(taken))

    @told_where_it_stops
    def watched(self, op: OpRecord, outputs: Iterable[LiveTensor]) -> None:
        """Files what the outputs of a watched operator hold now; `op` is named for it and for the operator that ran (`A_To_C`)."""
        if self.is_over:
            return
        with self._lock:
            taken = self._read(op, "output", outputs)
            self._reader.finish_step()
            self._settle(taken)
            self._file(_Finished(op, taken))

    @told_where_it_stops
    def place(self) -> None:
        """From now on files are written, into the directory of the rank that the process has by now."""
        with self._lock:
            waited = self._place is not None
            super().place()
            if waited and not self.is_deferring:
                self.release()

    def _change_ops(self, change: Callable[[OpRecord], OpRecord]) -> None:
        super()._change_ops(change)
        changed = []
        for op, taken, status in self._held:
            other = change(op)
            for entry in taken:
                entry.op = other
            changed.append(_Finished(other, taken, status))
        self._held = changed

    @told_where_it_stops
    def release(self) -> None:
        """The held operators belong to the step that they name."""
        with self._lock:
            if self._held:
                self.place()
            held, self._held = self._held, []
            for finished in held:
                self._file(finished)
            super().release()

    def discard(self) -> None:
        """The held operators belong to no step that is dumped."""
        with self._lock:
            self._held = []
            super().discard()

    def _lose(self) -> None:
        unfiled = [(finished.op, finished.taken) for finished in self._held]
        unfiled += [(taken[0].op, taken) for taken in self._open.values() if taken]
        self._held, self._open, self._later = [], {}, {}
        self._count_lost([op for op, _ in unfiled], sum(len(taken) for _, taken in unfiled))
        super()._lose()

    def _end_step(self, step: int) -> None:
        ran, self._graphs_ran = self._graphs_ran, set()
        if ran and isinstance(self._writer, SupportsHistory):
            self._writer.graphs_ran(step, ran)
        # The rows of the step go; operators that run in other threads have some of them.
        if any(self._open.values()):
            self._reader.finish_step()
            for taken in self._open.values():
                self._settle(taken)
        # A call that others ran in is filed after them, and began before.
        self._ops.sort(key=lambda op: op.timestamp)
        super()._end_step(step)

    def _count(self, steps: set[int], ops: Sequence[OpRecord], entries: Sequence[TensorSnapshot]) -> None:
        super()._count(steps, ops, entries)
        if self.plan.captures == "watch":
            self.executed -= len(ops)  # looks, and no operators: those are counted

    def _is_cleared(self, op: OpRecord, outputs: Iterable[LiveTensor]) -> bool:
        """Whether a look at the outputs is enough to see that the operator did not overflow."""
        summaries_only, detector = self._summaries_only, self._clearing
        assert summaries_only is not None, "only then inputs are left for later"
        assert detector is not None, "only then there are summaries_only"
        if self._has_enough():
            return True
        taken = self._read(op, "output", outputs, summaries_only)
        summaries_only.finish_step()
        for entry, summary in zip(taken, summaries_only.summaries(taken), strict=True):
            if summary is not None:
                entry.statistics = SummaryStatistics(summary)
        summaries_only.clear()
        return detector.clears(op, taken)

    def _read(
        self, op: OpRecord, io: IO, lives: Iterable[LiveTensor], reader: Reader | None = None
    ) -> list[TensorSnapshot]:
        reader = reader or self._reader
        found = []
        for slot, argument, tensor, source, skip in lives:
            taken = reader.skip(tensor, skip) if skip else reader.take(tensor)
            taken.belongs(op, io, slot, argument, source)
            found.append(taken)
        return found

    def _has_enough(self) -> bool:
        """Whether as many operators overflowed as the plan wants to see."""
        most = self.plan.overflow_number
        return bool(most) and self.overflows >= most

    def _detected(self, op: OpRecord, taken: list[TensorSnapshot], detector: OverflowDetector) -> int:
        if self._has_enough():
            return 0
        self._reader.finish_step()
        self._settle(taken)
        status = detector(op, taken)
        self.overflows += status != 0
        return status

    def _settle(self, taken: Sequence[TensorSnapshot]) -> None:
        """Sets the statistics now: who looks at an operator does not wait for the end of the step."""
        for entry, summary in zip(taken, self._reader.summaries(taken), strict=True):
            if summary is not None:
                entry.statistics = SummaryStatistics(summary, entry.digests, entry.extremes)
                entry.table = None
                entry.row = -1
            elif entry.digests and not entry.statistics:
                entry.statistics = dict(entry.digests)
        self._forget_rows()

    def _drop(self, reason: SkipReason) -> None:
        self._counted[reason] += 1
        self._forget_rows()

    def _forget_rows(self) -> None:
        # Rows of operators that run in other threads, or wait for the end of the step, are still needed.
        if not self._open and not self._held and not self._entries:
            self._reader.clear()

    def _close(self, finished: _Finished) -> None:
        if self.plan.saves_tensors and any(hasattr(entry.array, "to_numpy") for entry in finished.taken):
            self._reader.finish_step()
        if self.is_deferring or self._place is not None:
            self._held.append(finished)
            self._held_bytes += sum(map(held_bytes, finished.taken))
            if self._held_bytes > HELD_BYTES:
                self.place()
                self.release()
        else:
            self._file(finished)

    def _file(self, finished: _Finished) -> None:
        op, taken, status = finished
        if not (self.plan.inputs and self.plan.outputs):
            taken = [entry for entry in taken if (self.plan.inputs if entry.io == "input" else self.plan.outputs)]
        self._enter(op, taken, self._files(op, taken))
        if status and isinstance(self._writer, SupportsOverflows):
            self._writer.write_overflow(op, status)
        if self.plan.save_kernel_args:
            self._write_kernel_args(op)

    def _files(self, op: OpRecord, taken: Sequence[TensorSnapshot]) -> Sequence[str | None]:
        """Hands the elements of an operator to the layout; for each tensor its file, None where it has none."""
        if not self.plan.saves_tensors:
            return [None] * len(taken)
        if self.plan.sample_num is not None:
            for entry in taken:
                _cut(entry, self.plan.sample_num)
        records = [_record(entry) for entry in taken]
        if isinstance(self._writer, SupportsOperatorFiles):
            # A writer that failed gives nothing.
            return self._writer.write_operator(op, records) or [None] * len(records)
        if self._files_of is None:
            return [None] * len(records)
        return [None if record.payload is None else self._files_of.write_payload(record) for record in records]

    def _enter(self, op: OpRecord, taken: Sequence[TensorSnapshot], files: Sequence[str | None]) -> None:
        """What was filed goes into the index at the end of the step."""
        if self.is_over:
            self._count_lost([op], len(taken))
            return
        self._ops.append(op)
        self._entries += taken
        for entry, file in zip(taken, files, strict=True):
            entry.file = file
            entry.array = None


def _cut(entry: TensorSnapshot, count: int) -> None:
    """Keeps the first elements of a larger tensor alone, where the reader did not."""
    if entry.array is not None and not entry.sample:
        array = array_of(entry)
        if array.size > count:
            entry.array, entry.sample = array.reshape(-1)[:count].copy(), count


def _record(entry: TensorSnapshot) -> TensorRecord:
    return record_of(entry, None if entry.array is None else HostPayload(array_of(entry)))
