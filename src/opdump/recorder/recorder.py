"""The recorder of layouts that file tensor by tensor: elements go to the writer as soon as they are taken.

    opened = recorder.before_op(op, inputs)     # the true inputs, before an in-place kernel overwrites them
    ...the operator runs...
    recorder.after_op(opened, outputs)
    recorder.end_step(step)                     # statistic.csv, index, graphs

What a tensor is, and how to look at it, is the adapter's affair: it gives a `Reader`.

Where the dump cannot be written any more, the plan's `on_error` says what happens: "stop" raises in the program, "continue" tells of it
once, and from then on the recorder records nothing.
"""

from __future__ import annotations

import gc
import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import numpy.typing as npt

from opdump.errors import OpdumpError
from opdump.graph import GraphBuilder, GraphValue
from opdump.plan import DumpPlan
from opdump.plan.nearest import with_nearest
from opdump.recorder.circumstances import Circumstances, Nothing, why_nothing
from opdump.recorder.guarded import guarded
from opdump.recorder.own_errors import cut_short, stopped_by, told_where_it_stops
from opdump.recorder.snapshots import Live, LiveTensor, Reader, SupportsSides, TensorSnapshot
from opdump.recorder.verdict import Lookout
from opdump.recorder.writers import StepWriter, SupportsTensorFiles
from opdump.records import IO, HostPayload, OpRecord, SkipReason, record_of
from opdump.statistics import SummaryStatistics
from opdump.verdict import Verdict

_LOG = logging.getLogger("opdump")

GAPS: frozenset[SkipReason] = frozenset(
    {"no storage", "unsupported layout", "opaque", "device graph", "not observed", "not written"}
)
"""Reasons that leave a hole in a dump: `strict` makes them an error."""
MOST_OPS = 50_000
"""A step of more operators is filed in parts, so that a program whose step never ends does not fill the memory."""
MOST_NAMES = 100_000
"""Names of operators that are remembered for what nothing matched."""
HELD_BYTES = 2**28
"""More than this is not kept in memory to wait for the next step: then the operators belong to the step that they name."""


class Recorder:
    """Collects the operators of a step and hands them to a layout's writer.

    Threads may record at the same time; `end_step` belongs to the thread that drives the steps.
    """

    def __init__(self, plan: DumpPlan, writer: StepWriter, reader: Reader) -> None:
        self.plan = plan
        self.graphs: dict[int, GraphBuilder] = {}
        self.executed = 0
        self.captured = 0
        self.tensors = 0
        self.skipped: Counter[str] = Counter()
        self.tensors_skipped: Counter[str] = Counter()
        self.steps: list[int] = []
        self._known_steps: set[int] = set()
        self.is_deferring = False
        self.matched_kernels: set[str] = set()
        """Entries of the plan's `kernels` that matched some operator."""
        self.circumstances = Circumstances()
        """What an adapter knows of the program, for the case that nothing is captured."""
        self.names_seen: dict[str, str] = {}
        """Operators that were there, and their types."""
        self.warnings: list[str] = []
        """What an adapter has to say at the end of the run."""
        self.failure: Exception | None = None
        """What kept the dump from being written: the first cause."""
        self.is_over = False
        """Nothing is recorded any more: the dump could not be written, and the program goes on without it."""
        self.when_over: Callable[[], None] = _nothing
        """Called once when that happens, while an operator runs: an adapter may take itself out of the way."""
        self._lookout = Lookout(plan.mode)
        self.writer: Final = writer
        """What files the records."""
        self._writer = writer = guarded(writer, self._failed)
        self._files_of = writer if isinstance(writer, SupportsTensorFiles) else None
        """The same writer where its layout has a file for each tensor."""
        self._reader = reader
        self._wants_inputs, self._wants_outputs = plan.inputs, plan.outputs
        self._wants_arguments = plan.save_kernel_args
        self._sides_of = reader if isinstance(reader, SupportsSides) else None
        """The same reader where it takes all tensors of a side at once."""
        self._ops: list[OpRecord] = []
        self._counted: Counter[SkipReason] = Counter()
        self._entries: list[TensorSnapshot] = []
        self._waiting: list[TensorSnapshot] = []
        self._waiting_constants: list[tuple[int, TensorSnapshot]] = []
        self._graph_sizes: dict[int, int] = {}
        self._constants: dict[tuple[int, str, int], int] = {}
        self._kernel_args: set[tuple[int, int, str]] = set()
        self._held_bytes = 0
        self._filed_ops = 0
        self._lock = threading.RLock()
        self._place: Callable[[], int] | None = None
        self.when_placed: list[Callable[[int], object]] = []
        """Called with the number that the process turned out to have."""
        self.when_filed: Callable[[], object] = _nothing
        """Called when a step, or a part of one, was handed to the writer and counted."""

    def wait_for_place(self, place: Callable[[], int]) -> None:
        """Nobody knows yet which rank this process is: keeps files back until `place`, which asks this function."""
        self._place = place

    @told_where_it_stops
    def place(self) -> None:
        """From now on files are written, into the directory of the rank that the process has by now."""
        with self._lock:
            place, self._place = self._place, None
            if place is None:
                return
            rank = place()
            self._change_ops(lambda op: op if op.rank_id == rank else replace(op, rank_id=rank))
            for told in self.when_placed:
                told(rank)
            if not self.is_deferring:
                self._held_bytes = 0
                self._write_ready()

    @property
    def verdict(self) -> Verdict:
        """What was found first in the steps that were filed."""
        return self._lookout.verdict

    def graph(self, graph_id: int, root_name: str = "") -> GraphBuilder:
        """The graph under construction with that number."""
        builder = self.graphs.get(graph_id)
        if builder is None:
            builder = self.graphs[graph_id] = GraphBuilder(graph_id, root_name)
        return builder

    @contextmanager
    def writing(self) -> Iterator[None]:
        """For what else is written of the dump, beside what the recorder files: a failure in the block is one of the dump."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  told as what the writer meets is
            self._failed(error)

    @property
    def reader(self) -> Reader:
        """What looks at the tensors."""
        return self._reader

    @told_where_it_stops
    def before_op(self, op: OpRecord, inputs: Iterable[LiveTensor]) -> OpRecord:
        """Reads the inputs of an operator that is about to run."""
        if self.is_over:
            return op
        with self._lock:
            if len(self._ops) >= MOST_OPS:
                self.end_step(op.step)
            self._ops.append(op)
            if inputs and self._wants_inputs:
                self._take(op, "input", inputs)
        if self._wants_arguments:
            self._write_kernel_args(op)
        return op

    @told_where_it_stops
    def after_op(self, op: OpRecord, outputs: Iterable[LiveTensor]) -> None:
        """Reads the outputs of an operator that has run."""
        if outputs and self._wants_outputs and not self.is_over:
            with self._lock:
                self._take(op, "output", outputs)

    def failed_op(
        self, op: OpRecord, error: BaseException, inputs: Iterable[LiveTensor], opened: OpRecord | None = None
    ) -> None:
        """An operator raised. What was read of it before stays; only exception mode files more."""

    def abandoned_op(self, op: OpRecord) -> None:
        """An operator turned out to be none, or was cut off. What was read of it before stays."""

    def abandon(self) -> None:
        """In a forked process: a thread that is not there any more may have held the lock."""
        self._lock = threading.RLock()

    def defer(self) -> None:
        """From now on nobody knows yet which step the operators belong to: keeps their files back until `release`."""
        with self._lock:
            self.is_deferring = not self._ops and not self._counted and not self.is_over

    @told_where_it_stops
    def release(self) -> None:
        """The held operators belong to the step that they name."""
        with self._lock:
            if self.is_deferring:
                self.is_deferring = False
                self._held_bytes = 0
                self._write_ready()

    @told_where_it_stops
    def reassign_step(self, step: int) -> None:
        """The held operators belong to `step`, which was filed already: they ran after its end, and no other step came."""
        with self._lock:
            self._change_ops(lambda op: replace(op, step=step, order=op.order + self._filed_ops))
            self.release()

    def _change_ops(self, change: Callable[[OpRecord], OpRecord]) -> None:
        changed = {id(op): change(op) for op in self._ops}
        self._ops = [changed[id(op)] for op in self._ops]
        for entry in self._entries:
            entry.op = changed.get(id(entry.op), entry.op)

    def discard(self) -> None:
        """The held operators belong to no step that is dumped: nothing of them was filed yet."""
        with self._lock:
            self.is_deferring = False
            self._ops, self._entries, self._waiting = [], [], []
            self._counted = Counter()
            self._reader.clear()

    def skip_op(self, op: OpRecord) -> None:
        """Counts and lists an operator that leaves no data (`op.skip` says why)."""
        if self.is_over:
            return
        if len(self._ops) >= MOST_OPS:
            self.end_step(op.step)
        self._ops.append(op)

    def count_op(self, reason: SkipReason) -> None:
        """Counts an operator that leaves no data and was listed before, in this step or an earlier one."""
        with self._lock:
            if not self.is_over:
                self._counted[reason] += 1

    @told_where_it_stops
    def constant(self, op: OpRecord, live: Live) -> str:
        """Files a tensor that no operator made, once per place that reads it; the name of its source (`data-3`)."""
        key = (op.graph_id, op.op_name, live.slot)
        known = self._constants.get(key)
        if known is not None or self.is_over:
            return f"data-{known or 0}"
        with self._lock:
            data_id = sum(1 for graph_id, _, _ in self._constants if graph_id == op.graph_id)
            self._constants[key] = data_id
        facts = self._reader.skip(live.tensor, "not selected")
        self.graph(op.graph_id).add_constant(GraphValue(f"data-{data_id}", facts.dtype, facts.shape))
        if self.plan.saves_tensors and self._files_of is not None and self.plan.mode.files_values:
            with self._lock:
                taken = self._reader.take(live.tensor)
                taken.belongs(op, "output", 0, "", "")
                if taken.array is not None and not taken.skip:
                    self._waiting_constants.append((data_id, taken))
                    if not hasattr(taken.array, "to_numpy"):
                        self._write_constants()
        return f"data-{data_id}"

    @told_where_it_stops
    def end_step(self, step: int) -> None:
        """Files the statistics, the index rows and the graphs of the step; nothing where nothing was recorded."""
        with self._lock, _no_garbage_collection():
            self.release()
            before = self.executed
            if not self.is_over:
                self._end_step(step)
            if self.executed != before:
                self.when_filed()

    def _end_step(self, step: int) -> None:
        if not self._ops and not self._entries and not self._counted:
            return
        self.place()
        self._reader.finish_step()
        self._write_waiting()  # where this fails, nothing is left below
        ops, entries = self._ops, self._entries
        if len(self.names_seen) < MOST_NAMES:
            self.names_seen.update([(op.op_name, op.op_type) for op in ops])
        counted = self._counted
        for entry, summary in zip(entries, self._reader.summaries(entries), strict=True):
            if summary is not None:
                entry.statistics = SummaryStatistics(summary, entry.digests, entry.extremes)
        steps = {op.step for op in ops}
        steps.update([entry.op.step for entry in entries])
        if counted:
            steps.add(step)
        # Only now: what stops this before leaves them to be filed later, or to be counted as lost.
        self._ops, self._entries, self._counted = [], [], Counter()
        try:
            self._write_steps(step, steps, ops, entries, counted)
        except BaseException as error:
            # Ctrl-C, or a failure that is to stop the program: what was to be filed is in nobody's hands now.
            self._count_lost(ops, len(entries))
            self.executed += counted.total()
            self.skipped.update(counted)
            self.failure = self.failure or cut_short(self.plan.path, step, error)
            raise
        self._reader.clear()
        self._kernel_args.clear()
        if self.is_over:
            self._count_lost(ops, len(entries))
            self.executed += counted.total()
            self.skipped.update(counted)
            return
        self._filed_ops = len(ops) + counted.total()
        self._count(steps, ops, entries)
        self.executed += counted.total()
        self.skipped.update(counted)
        self.write_graphs()

    def _write_steps(
        self,
        step: int,
        steps: set[int],
        ops: Sequence[OpRecord],
        entries: Sequence[TensorSnapshot],
        counted: Counter[SkipReason],
    ) -> None:
        if steps == {step}:
            self._lookout.end_step(step, ops, entries)
            self._writer.write_step(step, ops, entries, [entry.file for entry in entries], counted)
        else:
            # Threads share one count of steps: what another thread ran belongs to the step that it was in.
            for number in sorted(steps):
                kept = [entry for entry in entries if entry.op.step == number]
                ran = [op for op in ops if op.step == number]
                self._lookout.end_step(number, ran, kept)
                self._writer.write_step(
                    number,
                    ran,
                    kept,
                    [entry.file for entry in kept],
                    counted if number == step else {},
                )

    def write_graphs(self) -> None:
        """Files the graphs that have grown since they were last filed."""
        for graph_id, builder in self.graphs.items():
            if self._graph_sizes.get(graph_id) != builder.size:
                self._graph_sizes[graph_id] = builder.size
                self._writer.write_graph(builder.build())

    def unmatched_kernels(self) -> list[str]:
        """What `kernels` names and no operator had, in words, with the nearest names of what was there."""
        unused = self.plan.unused_kernels(self.matched_kernels)
        if not self.names_seen:
            return []  # nothing was there at all: that is another reason
        candidates: dict[str, None] = {}
        for op_name, op_type in self.names_seen.items():
            candidates[op_type] = None
            candidates[op_name] = None
            candidates[op_name.rpartition("/")[2].rpartition("-op")[0]] = None
        return [with_nearest(f"kernels: {text!r} matched no operator", text, candidates) for text in unused]

    def why_nothing(self) -> Nothing | None:
        """Why nothing was captured; None where something was."""
        around = self.circumstances
        if self.captured or (self.tensors and not around.unable):
            return None
        if self.plan.selection == "kernels" and not self.matched_kernels and self.executed:
            around.chose_nothing = "names"
        return why_nothing(self.plan, around, executed=self.executed, skipped=self.skipped)

    @property
    def gaps(self) -> dict[str, int]:
        """Operators and tensors that should have left data and did not, by reason."""
        total = self.skipped + self.tensors_skipped
        return {reason: count for reason, count in total.items() if reason in GAPS}

    def stopped(self, error: Exception) -> None:
        """Something stopped the capture beside the program: that is no failure of the program."""
        if isinstance(error, OpdumpError) and self.failure is not None and self.plan.on_error == "stop":
            raise error  # on its way to the program already
        self._failed(error)

    def _failed(self, error: Exception) -> None:
        """The dump cannot be written: raise it in the program, or go on without the dump."""
        if not isinstance(error, OpdumpError):
            error = stopped_by(self.plan.path, error)
        with self._lock:
            first, self.failure = self.failure is None, self.failure or error
            if self.plan.on_error == "stop":
                raise error if first else _again(self.failure)
            if first:
                # An error of opdump's own comes with its traceback.
                cause = error if error.__cause__ is None else error.__cause__
                trace = None if isinstance(cause, OpdumpError | MemoryError | OSError | RecursionError) else cause
                text = failure_text(error)
                _LOG.error("opdump: %s. The program goes on, and nothing more is dumped", text, exc_info=trace)
            if first:
                self.is_over = True
                self.is_deferring = False
                self._lose()
                self.when_over()

    def lose_step(self) -> bool:
        """What is recorded and not filed cannot be filed any more; whether there was anything."""
        with self._lock:
            before = self.executed
            self._lose()
            return self.executed > before

    def _lose(self) -> None:
        """What is recorded of the step and not filed is counted as lost."""
        self._count_lost(self._ops, len(self._entries))
        self.executed += self._counted.total()
        self.skipped.update(self._counted)
        self._ops, self._entries, self._waiting, self._waiting_constants = [], [], [], []
        self._counted = Counter()
        self._reader.clear()

    def _count_lost(self, ops: Iterable[OpRecord], tensors: int) -> None:
        for op in ops:
            if op.op_type != "Parameter":
                self.executed += 1
                self.skipped[op.skip or "not written"] += 1
        if tensors:
            self.tensors_skipped["not written"] += tensors

    def _take(self, op: OpRecord, io: IO, lives: Iterable[LiveTensor]) -> None:
        reader, entries = self._reader, self._entries
        if self._sides_of is not None and self._sides_of.take_all(op, io, lives, entries):
            return
        for slot, argument, tensor, source, skip in lives:
            taken = reader.skip(tensor, skip) if skip else reader.take(tensor)
            taken.op = op
            taken.io = io
            taken.slot = slot
            taken.argument = argument
            taken.source = source
            entries.append(taken)
            if taken.array is not None:
                self._waiting.append(taken)
                self._held_bytes += held_bytes(taken)
        if self._waiting:
            if (self.is_deferring or self._place is not None) and self._held_bytes > HELD_BYTES:
                self.place()
                self.release()
            if reader.must_finish:
                self.place()
                reader.finish_step()
                self._write_waiting()
            elif not self.is_deferring and self._place is None:
                self._write_ready()

    def _write_ready(self) -> None:
        """Writes what is in host memory already; what is on its way from a device waits for the end of the step."""
        later = []
        for entry in self._waiting:
            if hasattr(entry.array, "to_numpy"):
                later.append(entry)
            else:
                self._write_entry(entry)
        self._waiting = later

    def _write_constants(self) -> None:
        """Writes the constants that were taken; those on their way from a device wait for the end of the step, as tensors do."""
        waiting, self._waiting_constants = self._waiting_constants, []
        assert self._files_of is not None or not waiting, "only then constants are taken"
        for data_id, taken in waiting:
            if self._files_of is not None:
                self._files_of.write_constant(data_id, record_of(taken, HostPayload(array_of(taken))))

    def _write_waiting(self) -> None:
        self._write_constants()
        for entry in self._waiting:
            self._write_entry(entry)
        self._waiting = []

    def _write_entry(self, entry: TensorSnapshot) -> None:
        if entry.array is None or self._files_of is None:
            return  # written already, by a call that Ctrl-C or a full disk cut off
        entry.file = self._files_of.write_payload(record_of(entry, HostPayload(array_of(entry))))
        entry.array = None

    def _write_kernel_args(self, op: OpRecord) -> None:
        key = (op.graph_id, op.step, op.op_name)
        if op.arguments and key not in self._kernel_args and self._files_of is not None:
            self._kernel_args.add(key)
            self._files_of.write_kernel_args(op)

    def _count(self, steps: set[int], ops: Sequence[OpRecord], entries: Sequence[TensorSnapshot]) -> None:
        self.executed += sum(1 for op in ops if op.op_type != "Parameter")
        for op in ops:
            if op.skip:
                self.skipped[op.skip] += 1
            elif op.op_type != "Parameter":
                self.captured += 1
        left_out = [entry.skip for entry in entries if entry.skip]
        self.tensors_skipped.update(left_out)
        self.tensors += len(entries) - len(left_out)
        self.steps.extend(sorted(step for step in steps - self._known_steps if step in self.plan.steps))
        self._known_steps.update(steps)


def _again(error: Exception) -> Exception:
    """The first cause once more: later ones follow from it. A new object: raising one twice would grow its traceback."""
    if not isinstance(error, OpdumpError):
        return error
    told = type(error)(str(error))
    told.__cause__ = error.__cause__
    return told


def _nothing() -> None:
    """Nobody wants to know."""


def failure_text(error: BaseException | None) -> str:
    """What kept a dump from being written, as one line; empty for None."""
    if error is None:
        return ""
    return str(error) if isinstance(error, OpdumpError) else f"{type(error).__name__}: {error}"


def array_of(taken: TensorSnapshot) -> npt.NDArray[Any]:
    """The elements that were taken, on the host."""
    array = taken.array
    if array is None:
        raise ValueError("no elements were taken of this tensor")
    return array.to_numpy() if hasattr(array, "to_numpy") else array


def held_bytes(taken: TensorSnapshot) -> int:
    """Bytes that the elements of a tensor take in memory, before any widening."""
    if not taken.sample:
        return taken.data_size
    return taken.data_size * taken.sample // max(math.prod(taken.shape), 1)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Thousands of records are made at once and freed at once; to look for cycles among them would take longer than that."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
