"""The recorder of layouts that file tensor by tensor: elements go to the writer as soon as they are taken.

    opened = recorder.before_op(op, inputs)     # the true inputs, before an in-place kernel overwrites them
    ...the operator runs...
    recorder.after_op(opened, outputs)
    recorder.end_step(step)                     # statistic.csv, index, graphs

What a tensor is, and how to look at it, is the adapter's affair: it gives a `Reader`.
"""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from opdump.graph import GraphBuilder, GraphValue
from opdump.plan import DumpPlan
from opdump.recorder.taken import Live, LiveTensor, Reader, SupportsSides, Taken
from opdump.recorder.writers import StepWriter, SupportsTensorFiles
from opdump.records import IO, HostPayload, OpRecord, SkipReason, record_of
from opdump.statistics import SummaryStatistics

GAPS: frozenset[SkipReason] = frozenset({"no storage", "unsupported layout", "opaque", "untold"})
"""Reasons that leave a hole in a dump: `strict` makes them an error."""
MOST_OPS = 50_000
"""A step of more operators is filed in parts, so that a program whose step never ends does not fill the memory."""
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
        self.holding = False
        self.matched_kernels: set[str] = set()
        """Entries of the plan's `kernels` that matched some operator."""
        self.warnings: list[str] = []
        """What an adapter has to say at the end of the run."""
        self._writer = writer
        self._files_of = writer if isinstance(writer, SupportsTensorFiles) else None
        """The same writer where its layout has a file for each tensor."""
        self._reader = reader
        self._wants_inputs, self._wants_outputs = plan.inputs, plan.outputs
        self._wants_arguments = plan.save_kernel_args
        self._sides_of = reader if isinstance(reader, SupportsSides) else None
        """The same reader where it takes all tensors of a side at once."""
        self._ops: list[OpRecord] = []
        self._counted: Counter[SkipReason] = Counter()
        self._entries: list[Taken] = []
        self._waiting: list[Taken] = []
        self._graph_sizes: dict[int, int] = {}
        self._constants: dict[tuple[int, str, int], int] = {}
        self._kernel_args: set[tuple[int, int, str]] = set()
        self._held_bytes = 0
        self._filed_ops = 0
        self._lock = threading.RLock()

    def graph(self, graph_id: int, root_name: str = "") -> GraphBuilder:
        """The graph under construction with that number."""
        builder = self.graphs.get(graph_id)
        if builder is None:
            builder = self.graphs[graph_id] = GraphBuilder(graph_id, root_name)
        return builder

    @property
    def writer(self) -> StepWriter:
        """What files the records."""
        return self._writer

    def before_op(self, op: OpRecord, inputs: Iterable[LiveTensor]) -> OpRecord:
        """Reads the inputs of an operator that is about to run."""
        with self._lock:
            if len(self._ops) >= MOST_OPS:
                self.end_step(op.step)
            self._ops.append(op)
            if inputs and self._wants_inputs:
                self._take(op, "input", inputs)
        if self._wants_arguments:
            self._write_kernel_args(op)
        return op

    def after_op(self, op: OpRecord, outputs: Iterable[LiveTensor]) -> None:
        """Reads the outputs of an operator that has run."""
        if outputs and self._wants_outputs:
            with self._lock:
                self._take(op, "output", outputs)

    def failed_op(
        self, op: OpRecord, error: BaseException, inputs: Iterable[LiveTensor], opened: OpRecord | None = None
    ) -> None:
        """An operator raised. What was read of it before stays; only exception mode files more."""

    def abandoned_op(self, op: OpRecord) -> None:
        """An operator turned out to be none, or was cut off. What was read of it before stays."""

    def hold(self) -> None:
        """From now on nobody knows yet which step the operators belong to: keeps their files back until `release`."""
        with self._lock:
            self.holding = not self._ops and not self._counted

    def release(self) -> None:
        """The held operators belong to the step that they name."""
        with self._lock:
            if self.holding:
                self.holding = False
                self._held_bytes = 0
                self._write_ready()

    def fold_back(self, step: int) -> None:
        """The held operators belong to `step`, which was filed already: they ran after its end, and no other step came."""
        with self._lock:
            moved = {id(op): replace(op, step=step, order=op.order + self._filed_ops) for op in self._ops}
            self._ops = [moved[id(op)] for op in self._ops]
            for entry in self._entries:
                entry.op = moved.get(id(entry.op), entry.op)
            self.release()

    def discard(self) -> None:
        """The held operators belong to no step that is dumped: nothing of them was filed yet."""
        with self._lock:
            self.holding = False
            self._ops, self._entries, self._waiting = [], [], []
            self._counted = Counter()
            self._reader.clear()

    def skip_op(self, op: OpRecord) -> None:
        """Counts and lists an operator that leaves no data (`op.skip` says why)."""
        if len(self._ops) >= MOST_OPS:
            self.end_step(op.step)
        self._ops.append(op)

    def count_op(self, reason: SkipReason) -> None:
        """Counts an operator that leaves no data and was listed before, in this step or an earlier one."""
        with self._lock:
            self._counted[reason] += 1

    def constant(self, op: OpRecord, live: Live) -> str:
        """Files a tensor that no operator made, once per place that reads it; the name of its source (`data-3`)."""
        key = (op.graph_id, op.op_name, live.slot)
        known = self._constants.get(key)
        if known is not None:
            return f"data-{known}"
        with self._lock:
            data_id = sum(1 for graph_id, _, _ in self._constants if graph_id == op.graph_id)
            self._constants[key] = data_id
        facts = self._reader.skip(live.tensor, "not selected")
        self.graph(op.graph_id).add_constant(GraphValue(f"data-{data_id}", facts.dtype, facts.shape))
        if self.plan.saves_tensors and self._files_of is not None and self.plan.captures == "data":
            taken = self._reader.take(live.tensor)
            taken.belongs(op, "output", 0, "", "")
            if taken.array is not None and not taken.skip:
                self._reader_finish_if_pending(taken)
                self._files_of.write_constant(data_id, record_of(taken, HostPayload(array_of(taken))))
        return f"data-{data_id}"

    def end_step(self, step: int) -> None:
        """Files the statistics, the index rows and the graphs of the step; nothing where nothing was recorded."""
        with self._lock, _no_garbage_collection():
            self.release()
            self._end_step(step)

    def _end_step(self, step: int) -> None:
        if not self._ops and not self._entries and not self._counted:
            return
        self._reader.finish_step()
        self._write_waiting()
        ops, entries = self._ops, self._entries
        counted = self._counted
        self._ops, self._entries, self._counted = [], [], Counter()
        for entry, summary in zip(entries, self._reader.summaries(entries), strict=True):
            if summary is not None:
                entry.statistics = SummaryStatistics(summary, entry.digests, entry.extremes)
        steps = {op.step for op in ops}
        steps.update([entry.op.step for entry in entries])
        if counted:
            steps.add(step)
        if steps == {step}:
            self._writer.write_step(step, ops, entries, [entry.file for entry in entries], counted)
        else:
            # Threads share one count of steps: what another thread ran belongs to the step that it was in.
            for number in sorted(steps):
                kept = [entry for entry in entries if entry.op.step == number]
                self._writer.write_step(
                    number,
                    [op for op in ops if op.step == number],
                    kept,
                    [entry.file for entry in kept],
                    counted if number == step else {},
                )
        self._reader.clear()
        self._kernel_args.clear()
        self._filed_ops = len(ops) + counted.total()
        self._count(steps, ops, entries)
        self.executed += counted.total()
        self.skipped.update(counted)
        self.write_graphs()

    def write_graphs(self) -> None:
        """Files the graphs that have grown since they were last filed."""
        for graph_id, builder in self.graphs.items():
            if self._graph_sizes.get(graph_id) != builder.size:
                self._graph_sizes[graph_id] = builder.size
                self._writer.write_graph(builder.build())

    @property
    def gaps(self) -> dict[str, int]:
        """Operators and tensors that should have left data and did not, by reason."""
        total = self.skipped + self.tensors_skipped
        return {reason: count for reason, count in total.items() if reason in GAPS}

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
                self._held_bytes += taken.data_size
        if self._waiting:
            if self.holding and self._held_bytes > HELD_BYTES:
                self.release()
            if reader.must_finish:
                reader.finish_step()
                self._write_waiting()
            elif not self.holding:
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

    def _write_waiting(self) -> None:
        for entry in self._waiting:
            self._write_entry(entry)
        self._waiting = []

    def _write_entry(self, entry: Taken) -> None:
        if entry.array is None or self._files_of is None:
            return  # written already, by a call that Ctrl-C or a full disk cut off
        entry.file = self._files_of.write_payload(record_of(entry, HostPayload(array_of(entry))))
        entry.array = None

    def _reader_finish_if_pending(self, taken: Taken) -> None:
        if hasattr(taken.array, "to_numpy"):
            self._reader.finish_step()

    def _write_kernel_args(self, op: OpRecord) -> None:
        key = (op.graph_id, op.step, op.op_name)
        if op.arguments and key not in self._kernel_args and self._files_of is not None:
            self._kernel_args.add(key)
            self._files_of.write_kernel_args(op)

    def _count(self, steps: Iterable[int], ops: Sequence[OpRecord], entries: Sequence[Taken]) -> None:
        self.executed += sum(1 for op in ops if op.op_type != "Parameter")
        for op in ops:
            if op.skip:
                self.skipped[op.skip] += 1
            elif op.op_type != "Parameter":
                self.captured += 1
        left_out = [entry.skip for entry in entries if entry.skip]
        self.tensors_skipped.update(left_out)
        self.tensors += len(entries) - len(left_out)
        self.steps.extend(sorted(step for step in steps if step not in self._known_steps))
        self._known_steps.update(steps)


def array_of(taken: Taken) -> npt.NDArray[Any]:
    """The elements that were taken, on the host."""
    array = taken.array
    if array is None:
        raise ValueError("no elements were taken of this tensor")
    return array.to_numpy() if hasattr(array, "to_numpy") else array


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
