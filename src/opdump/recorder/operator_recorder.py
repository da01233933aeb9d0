"""The recorder of whole operators: the data of an operator stay in memory until it has run, and are written together.

Layouts with one file per operator need it, and so does every mode that knows only afterwards whether to keep an operator.
`OverflowRecorder`, `FailureRecorder` and `WatchRecorder` decide what happens to an operator that has run or failed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from opdump.checks.overflow import OverflowKind, OverflowStatus, overflow_kind, overflow_status
from opdump.checks.tensor_checks import InspectedTensor
from opdump.layouts.base import RankWriter
from opdump.plan import DumpPlan
from opdump.recorder.capture_errors import loses_operator_on_error, stops_capture_on_error
from opdump.recorder.recorder import Recorder
from opdump.recorder.snapshots import LiveTensor, Reader, TensorSnapshot, settle
from opdump.records import IO, OpRecord
from opdump.statistics import SummaryStatistics
from opdump.step_table import StepTemplate


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

    def __init__(self, plan: DumpPlan, writer: RankWriter, reader: Reader) -> None:
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
    def take_block(self, template: StepTemplate, step: int, timestamps: Sequence[int], tensors: Any) -> bool:
        with self.lock:
            # All operators of a block belong to one graph.
            self._graphs_ran.update(op.graph_id for op in template.ops[:1])
            self._sort()
            return super().take_block(template, step, timestamps, tensors)

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
        if ran:
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
        """Count an operator that has run and is not recorded in this mode."""
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
        if status is not None:
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
        # A writer that failed returns nothing.
        return self._writer.write_operator(op, records) or [None] * len(records)

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


# The recorder of failures. It writes the operator that raises, and nothing of operators that succeed.


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
        if self.plan.layout_facts.files == "operators":
            records = [entry.record() for entry in taken]
            files = self._writer.write_exception(op, records, f"{type(error).__name__}: {error}")
            files = files or [None] * len(records)
        else:
            files = self._filed(op, taken)
        self._enter(op, taken, files)
        self.end_step(op.step)
        self._writer.flush()


# The recorder of watched memory. It writes the outputs of watched operators as they are after other operators ran, and nothing of those
# operators.


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


# The recorder of overflows. Each operator is judged after it has run, from its inputs and outputs, and written as a whole if it overflowed.
#
# For nearly every operator the outputs suffice: if all of them are finite, no input can make it an overflow. Inputs are therefore not read before the
# operator runs, except those that it writes into, and no elements are copied until an operator is a suspect.

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

    def __init__(self, plan: DumpPlan, writer: RankWriter, reader: Reader, detector: OverflowDetector) -> None:
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
