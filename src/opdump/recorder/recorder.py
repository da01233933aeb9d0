"""The wrapper that reports the failures of a layout's writer, and the growing graphs of a capture."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from opdump.checks.nonfinite_lineage import Checked
from opdump.errors import OpdumpError
from opdump.graph import Graph, GraphBuilder, GraphValue
from opdump.interpreter.critical_sections import no_garbage_collection, not_interrupted
from opdump.layouts.base import RankWriter
from opdump.plan import DumpPlan
from opdump.recorder.bounds import Bounds
from opdump.recorder.capture_errors import (
    CaptureClock,
    Losing,
    LostOperators,
    cut_short,
    failure_text,
    is_defect,
    loses_operator_on_error,
    once_more,
    stopped_by,
    stops_capture_on_error,
    traceback_of,
)
from opdump.recorder.filing import (
    EndedStep,
    StepFiling,
    TakenPart,
    all_ops,
    changed,
    count_tensors,
    merged,
    most_held,
    most_operators,
    records_of_step,
    steps_of,
)
from opdump.recorder.live_checks import LiveChecks, LossSpikes
from opdump.recorder.program_facts import Nothing, ProgramFacts, Tally, explain_empty_capture, unmatched_kernels
from opdump.recorder.snapshots import (
    Live,
    LiveTensor,
    Reader,
    SupportsBlocks,
    SupportsRows,
    SupportsSides,
    TensorSnapshot,
    block_numbers,
    settle,
)
from opdump.records import IO, OpRecord, SkipReason
from opdump.statistics import ElementStatistics
from opdump.step_table import Singles, StepTemplate, TemplateRun
from opdump.verdict import Verdict

# A wrapper for the writer of a layout that reports failures to the recorder, so that a full disk need not end the program.

_WRITING: Final = (
    "write_payload",
    "write_operator",
    "write_exception",
    "write_overflow",
    "write_constant",
    "write_kernel_args",
    "write_step",
    "write_graph",
    "write_graph_files",
    "graphs_ran",
    "write_degradation",
    "flush",
)


class ErrorPolicyWriter(RankWriter):
    """Passes each exception of the writing methods of `writer` to `failed`, which may raise it again. Otherwise the method returns an empty result.

    An interrupt (Ctrl-C) passes through.
    """

    def __init__(self, writer: RankWriter, failed: Callable[[Exception], None]) -> None:
        for name in _WRITING:
            setattr(self, name, _around(getattr(writer, name), "" if name == "write_payload" else None, failed))


def _around(method: Callable[..., Any], instead: object, failed: Callable[[Exception], None]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        try:
            return method(*args)
        except Exception as error:  # noqa: BLE001  the recorder reports every kind of error
            failed(error)
            return instead

    return call


# The growing graphs of a capture, and the numbers of their constants.


class GrowingGraphs:
    """Graphs under construction, by graph ID."""

    def __init__(self, writer: RankWriter) -> None:
        self._writer = writer
        self._builders: dict[int, GraphBuilder] = {}
        self._filed_sizes: dict[int, int] = {}
        self._constants: dict[tuple[int, str, int], int] = {}
        """Numbers of constants, by graph, operator and slot that reads it."""

    def of(self, graph_id: int, root_name: str = "") -> GraphBuilder:
        builder = self._builders.get(graph_id)
        if builder is None:
            builder = self._builders[graph_id] = GraphBuilder(graph_id, root_name)
        return builder

    def file(self, graph: Graph, files: Mapping[str, bytes]) -> None:
        """Write a graph that the runtime described itself, as these files if the layout has a place for them."""
        self._writer.write_graph_files(graph, files)

    def constant_name(self, op: OpRecord, slot: int) -> str:
        """Return the name of the constant that an operator reads in this slot, or an empty string for a new one."""
        known = self._constants.get((op.graph_id, op.op_name, slot))
        return "" if known is None else f"data-{known}"

    def add_constant(self, op: OpRecord, slot: int) -> int:
        number = sum(1 for graph_id, _, _ in self._constants if graph_id == op.graph_id)
        self._constants[op.graph_id, op.op_name, slot] = number
        return number

    def write_grown(self) -> None:
        for graph_id, builder in self._builders.items():
            if self._filed_sizes.get(graph_id) != builder.size:
                self._filed_sizes[graph_id] = builder.size
                self._writer.write_graph(builder.build())


# The recorder of layouts that write tensor by tensor: elements go to the writer as soon as they are read.
#
# If the dump can no longer be written, the plan's `on_error` decides: "stop" raises in the program; "continue" reports it once, and nothing more is
# recorded.

_LOG = logging.getLogger("opdump")

_RECENT: Final = 100
"""Number of recent operators that are searched for one that was lost."""
MOST_NAMES = 100_000
"""Limit for the operator names that are remembered to suggest the nearest ones."""


class Recorder:
    """Collects the operators of a step and passes them to the writer of a layout.

    Threads may record at the same time; `end_step` belongs to the thread that drives the steps.
    """

    def __init__(self, plan: DumpPlan, writer: RankWriter, reader: Reader) -> None:
        self.plan = plan
        self.tally = Tally(plan.steps)
        self.is_deferring = False
        self.matched_kernels: set[str] = set()
        """Entries of the plan's `kernels` that matched an operator."""
        self.circumstances = ProgramFacts()
        """What an adapter knows about the program, to explain an empty capture."""
        self.names_seen: dict[str, str] = {}
        """Operators that were seen, and their types."""
        self.warnings: list[str] = []
        """Warnings of an adapter, for the end of the run."""
        self.failure: Exception | None = None
        """The first error that kept the dump from being written."""
        self.is_over = False
        """Nothing is recorded any more: the dump could not be written, and the program continues without it."""
        self.when_over: Callable[[], None] = lambda: None
        """Called once when that happens, while an operator runs: an adapter may remove its hooks."""
        self.lost: Final = LostOperators()
        self.when_lost: Callable[[], None] = lambda: None
        """Called when an operator was lost: what an adapter remembers about it is no longer valid."""
        self.clock: Final = CaptureClock()
        self.bounds: Final = Bounds(plan, self.clock)
        self._checks = None if plan.checks is None else LiveChecks(plan, reader)
        self.writer: Final = writer
        self._writer = writer = ErrorPolicyWriter(writer, self._failed)
        self.bounds.reader, self.bounds.writer = reader, writer
        self._graphs = GrowingGraphs(writer)
        self.graph: Final = self._graphs.of
        self.constant_at: Final = self._graphs.constant_name
        self._filing = StepFiling(
            plan, writer, self.tally, self._checks, self.bounds, self._step_filed, lambda: self.is_over
        )
        self._files = self._filing.files
        self.file_elements: Final = self._files.write_followed
        """Writes the elements of a tensor of a run before the run is added, and returns their location (`TemplateRun.files`). Only if they are copied at
        once.
        """
        self.copies_elements: Final = self._files.copies
        self._most_ops, self._most_held = most_operators(plan), most_held(plan)
        self.fire: Final = self._filing.fire
        """Requests that the last steps are written, if the plan keeps them in memory (`ring`), and the running step when it ends."""
        self.losses: Final = LossSpikes(self.fire) if plan.ring and "loss-spike" in plan.triggers else None
        self.reader: Final = reader
        self._statistics = ElementStatistics(plan.statistic_category if plan.saves_statistics else ())
        self._sides_of = reader if isinstance(reader, SupportsSides) else None
        """The same reader, if it reads all tensors of one side in one call."""
        self._rows_of = reader if isinstance(reader, SupportsRows) else None
        self._blocks_of = reader if isinstance(reader, SupportsBlocks) else None
        """The same reader, if it reads all tensors of many operators in one call and nothing examines them one by one."""
        self.takes_runs: Final = self._checks is None and not (plan.save_kernel_args or self._statistics.of_summary)
        """Whether `add_run` may be called: nothing examines the operators and tensors of a run one by one."""
        if not self.takes_runs:
            self._blocks_of = None
        self._parts: list[TakenPart] = []
        """What was recorded of the step before `_ops` and `taken`."""
        self._ops_in_parts = 0
        self._ops: list[OpRecord] = []
        self._counted: Counter[SkipReason] = Counter()
        self.taken: list[TensorSnapshot] = []
        """The single snapshots since the last run, or since the step began."""
        self._filed_ops = 0
        self.lock = threading.RLock()  # only the thread that holds it records
        self._place: Callable[[], int] | None = None
        self.when_placed: list[Callable[[int], object]] = []  # called with the rank
        self.when_filed: Callable[[], object] = lambda: None
        """Called when a step, or a part of one, was passed to the writer and counted."""
        self.gather: Callable[[], None] = lambda: None
        """Called before all records are examined: an adapter may hold a run that is not finished, and adds it (`add_run`)."""

    def wants(self, step: int) -> bool:
        """Return whether a step is recorded: the plan selects it, the limits allow it, and the dump continues."""
        return step in self.plan.steps and not self.is_over and self.bounds.wants(step)

    def wait_for_place(self, place: Callable[[], int]) -> None:
        """Hold files back until `place` is called, because the rank of this process is not known yet. The argument `place` returns the rank."""
        self._place = place

    @stops_capture_on_error
    def place(self) -> None:
        """Write files from now on, into the directory of the rank that the process has now."""
        with self.lock:
            place, self._place = self._place, None
            if place is None:
                return
            rank = place()
            self._change_ops(lambda op: op if op.rank_id == rank else replace(op, rank_id=rank))
            for told in self.when_placed:
                told(rank)
            if not self.is_deferring:
                self._files.write_ready()

    def checked(self) -> Checked | None:
        """Return the findings of the checks in the steps that were written, or None if the plan has no checks."""
        return None if self._checks is None else self._checks.checked()

    @property
    def verdict(self) -> Verdict:
        """The first finding in the steps that were written."""
        return self._filing.verdict

    def file_graph(self, graph: Graph, files: Mapping[str, bytes]) -> None:
        """Write a graph that the runtime described itself. `files` maps paths in MindSpore's synchronous layout to contents."""
        if not self.is_over:
            self._graphs.file(graph, files)

    def graphs_ran(self, step: int, graph_ids: Iterable[int]) -> None:
        """Note that these graphs executed something in a step, even if none of it is recorded."""
        if not self.is_over:
            self._writer.graphs_ran(step, graph_ids)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Wrap code that writes other parts of the dump: an exception in the block counts as a failure of the dump."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  handled like an error of the writer
            self._failed(error)

    def before_op(self, op: OpRecord, inputs: Iterable[LiveTensor], changes: Collection[str] | None = None) -> OpRecord:
        """Read the inputs of an operator that is about to run. Return its record, to be passed to `after_op`.

        `changes` names the arguments that the operator writes into, or is None if they are unknown. A recorder that writes few operators may read the
        unchanged inputs after the operator has run.
        """
        self._begin_op(op, inputs, changes)
        return op

    @loses_operator_on_error
    def _begin_op(self, op: OpRecord, inputs: Iterable[LiveTensor], changes: Collection[str] | None) -> None:
        if self.is_over:
            return
        self.gather()
        with self.lock:
            if self._ops_in_parts + len(self._ops) >= self._most_ops:
                self.end_step(op.step, is_part=True)
            self._ops.append(op)
            if inputs and self.plan.inputs:
                self._take(op, "input", inputs)
        if self.plan.save_kernel_args:
            self._files.write_arguments(op)

    @loses_operator_on_error
    def after_op(self, op: OpRecord, outputs: Iterable[LiveTensor]) -> None:
        """Read the outputs of an operator that has run."""
        if outputs and self.plan.outputs and not self.is_over:
            self.gather()
            with self.lock:
                self._take(op, "output", outputs)

    @property
    def takes_blocks(self) -> bool:
        """Whether `take_block` may be called: only summaries of tensors are recorded."""
        return self._blocks_of is not None and self._blocks_of.takes_blocks

    @stops_capture_on_error
    def take_block(self, template: StepTemplate, step: int, timestamps: Sequence[int], tensors: Any) -> bool:
        """Read the tensors of operators that ran one after the other. The slots of `template` refer to `tensors` by index.

        Return False if a defect prevented it. Nothing was recorded then, and the operators may be passed one by one.
        """
        if self.is_over or self._blocks_of is None:
            return True
        try:
            with self.lock:
                if self._ops_in_parts + len(self._ops) >= self._most_ops:
                    self.end_step(step, is_part=True)
                facts, rows = self._blocks_of.take_block(tensors)
                template = template.on(facts)
                self.add_run(TemplateRun(template, step, timestamps, rows[template.tensor_places]))
        except Exception as error:
            if self.plan.on_error == "stop" or not is_defect(error):
                raise
            _LOG.debug("opdump: operators are recorded one by one", exc_info=error)
            return False
        return True

    def add_run(self, run: TemplateRun) -> None:
        """Append operators that ran one after the other and whose summaries the reader has."""
        with self.lock:
            parts, count = [*self._gathered(), run], self._ops_in_parts + len(self._ops) + len(run.timestamps)
            self._forget_records()
            self._parts, self._ops_in_parts = parts, count

    def add_single(self, op: OpRecord, taken: Sequence[TensorSnapshot]) -> None:
        """Append an operator and what was read of it."""
        with self.lock:
            self._ops.append(op)
            self.taken += taken

    @stops_capture_on_error
    def read_ahead(self, tensors: Any) -> None:
        """Read tensors that are passed to `take_block` later, when their memory may be gone."""
        if self._blocks_of is not None and not self.is_over:
            with self.lock:
                self._blocks_of.take_ahead(tensors)

    def _all_parts(self) -> list[TakenPart]:
        """Return everything that is recorded and not written yet."""
        self.gather()
        return self._gathered()

    def _gathered(self) -> list[TakenPart]:
        return [*self._parts, Singles(self._ops, self.taken)] if self._ops or self.taken else self._parts

    def _forget_records(self) -> None:
        self._parts, self._ops_in_parts, self._ops, self.taken = [], 0, [], []

    def failed_op(
        self, op: OpRecord, error: BaseException, inputs: Iterable[LiveTensor], opened: OpRecord | None = None
    ) -> None:
        """Note that an operator raised. What was read before stays; only exception mode writes more."""

    def abandoned_op(self, op: OpRecord) -> None:
        """Note that a call turned out to be no operator, or was cut off. What was read before stays."""

    def abandon(self) -> None:
        """Replace the lock in a forked process: it may be held by a thread that does not exist here."""
        self.lock = threading.RLock()

    def defer(self) -> None:
        """Hold files back until `release`, because the step of the next operators is not known yet."""
        with self.lock:
            self.is_deferring = not self._all_parts() and not self._counted and not self.is_over

    @stops_capture_on_error
    def release(self) -> None:
        """Write the held operators into the step that they name."""
        with self.lock:
            if self.is_deferring:
                self.is_deferring = False
                self._files.write_ready()

    @stops_capture_on_error
    def reassign_step(self, step: int) -> None:
        """Assign the held operators to `step`, which was written before: they ran after its end, and no other step followed."""
        with self.lock:
            self._change_ops(lambda op: replace(op, step=step, order=op.order + self._filed_ops))
            self.release()

    def _change_ops(self, change: Callable[[OpRecord], OpRecord]) -> None:
        parts, count = changed(self._all_parts(), change), self._ops_in_parts + len(self._ops)
        self._forget_records()
        self._parts, self._ops_in_parts = parts, count

    def discard(self) -> None:
        """Drop the held operators, which belong to no selected step. None of their files was written yet."""
        with self.lock:
            self.gather()
            self.is_deferring = False
            self._forget_records()
            self._files.forget_tensors()
            self._counted = Counter()
            self.reader.clear()

    def skip_op(self, op: OpRecord) -> None:
        """Count and list an operator that leaves no data; `op.skip` is the reason."""
        if self.is_over:
            return
        self.gather()
        if self._ops_in_parts + len(self._ops) >= self._most_ops:
            self.end_step(op.step, is_part=True)
        self._ops.append(op)

    def count_op(self, reason: SkipReason, count: int = 1) -> None:
        """Count operators that leave no data and were listed before, in this step or an earlier one."""
        with self.lock:
            if count and not self.is_over:
                self._counted[reason] += count

    @stops_capture_on_error
    def constant(self, op: OpRecord, live: Live) -> str:
        """Write a tensor that no operator produced, once per slot that reads it. Return the name of its source (`data-3`)."""
        known = self._graphs.constant_name(op, live.slot)
        if known or self.is_over:
            return known or "data-0"
        with self.lock:
            data_id = self._graphs.add_constant(op, live.slot)
        facts = self.reader.skip(live.tensor, "not selected")
        self.graph(op.graph_id).add_constant(GraphValue(f"data-{data_id}", facts.dtype, facts.shape))
        if self.bounds.takes_elements and self._files.are_written and self.plan.mode.files_values:
            with self.lock:
                taken = self.reader.take(live.tensor)
                taken.belongs(op, "output", 0, "", "")
                self._files.add_constant(data_id, taken)
        return f"data-{data_id}"

    @not_interrupted
    @stops_capture_on_error
    def end_step(self, step: int, *, is_part: bool = False) -> None:
        """Write the statistics, index rows and graphs of the step, if anything was recorded. `is_part`: the step continues."""
        with self.lock, no_garbage_collection():
            self.release()
            before = self.tally.executed
            if not self.is_over:
                self._end_step(step)
            if self.tally.executed != before:
                self.when_filed()
                self.bounds.step_filed(step, is_part=is_part)
            self.stop_at_bound()

    def _end_step(self, step: int) -> None:
        if not self._all_parts() and not self._counted:
            return
        self.place()
        self.reader.finish_step()
        self._files.write_all()  # first: if it fails, the records are still in place
        parts, counted = self._all_parts(), self._counted
        singles, runs = merged(parts), [part for part in parts if isinstance(part, TemplateRun)]
        if len(self.names_seen) < MOST_NAMES:
            self.names_seen.update([(op.op_name, op.op_type) for op in singles.ops])
            for run in runs:
                self.names_seen.update(run.template.names)
        settle(self.reader, singles.tensors, self._statistics)
        numbers = block_numbers(self._rows_of) if runs else None
        steps = steps_of(parts) | ({step} if counted else set())
        # Only now: if anything above fails, the records stay, to be written later or counted as lost.
        self._forget_records()
        self._counted = Counter()
        try:
            is_only = len(steps) == 1
            records = [
                (number, *records_of_step(parts, number, is_only=is_only, numbers=numbers)) for number in sorted(steps)
            ]
            ended = EndedStep(step, steps, parts, records, counted)
            self._filing.write(ended)
        except BaseException as error:
            # Ctrl-C, or a failure that is to stop the program: the records are no longer held anywhere.
            self._filing.count_lost([EndedStep(step, steps, parts, (), counted)])
            self.failure = self.failure or cut_short(self.plan.path, step, error)
            raise
        self.reader.clear()
        self._files.end_step()
        self._filed_ops = len(singles.ops) + sum(len(run.timestamps) for run in runs) + counted.total()
        self._filing.count(ended)

    @property
    def fired(self) -> Sequence[str]:
        """The triggers that have fired so far, in words."""
        return self._filing.fired

    def end_run(self) -> None:
        """End the run. Steps kept in memory are written if a trigger has fired, else counted as left out."""
        with self.lock:
            self._filing.end_run()

    def unmatched_kernels(self) -> list[str]:
        """Return a message for each entry of `kernels` that matched no operator, with the nearest names seen."""
        return unmatched_kernels(self.plan, self.matched_kernels, self.names_seen)

    def explain_empty_capture(self) -> Nothing | None:
        """Return why nothing was captured, or None if something was."""
        around, tally = self.circumstances, self.tally
        if tally.captured or (tally.tensors and not around.unable):
            return None
        if self.plan.selection == "kernels" and not self.matched_kernels and tally.executed:
            around.chose_nothing = "names"
        return explain_empty_capture(self.plan, around, executed=tally.executed, skipped=tally.skipped)

    def stopped(self, error: Exception) -> None:
        """Handle an error that stopped the capture and is not a failure of the program."""
        if isinstance(error, OpdumpError) and self.failure is not None and self.plan.on_error == "stop":
            raise error  # already on its way to the program
        self._failed(error)

    def losing(self, what: object) -> Losing:
        """Return a context for code that records or prepares an operator. An error in it goes to `loses`."""
        return Losing(self, what)

    def loses(self, what: object, error: Exception) -> None:
        """Count an operator, `what`, that a defect of opdump kept from being recorded completely; a warning reports the reason.

        If the error is not a defect, or `on_error` is "stop", the dump ends, as in `stopped`.
        """
        if self.plan.on_error == "stop" or not is_defect(error):
            self.stopped(error)
            return
        with self.lock:
            if self.is_over:
                return
            self.lost.add(what, error)
            op = getattr(what, "op", what)
            # An operator that has begun is already counted as executed.
            if not any(op is each for each in self._ops[-_RECENT:]):
                self._counted["not observed"] += 1
        self.when_lost()

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, OpdumpError):
            error = stopped_by(self.plan.path, error)
        with self.lock:
            first, self.failure = self.failure is None, self.failure or error
            if self.plan.on_error == "stop":
                raise error if first else once_more(self.failure)
            if first:
                text, trace = failure_text(error), traceback_of(error)
                _LOG.error("opdump: %s. The program continues, and nothing more is dumped", text, exc_info=trace)
                self.is_over, self.is_deferring = True, False
                self._lose()
                self.when_over()

    def stop_at_bound(self) -> None:
        """Stop recording if a limit requires it. Everything recorded so far is written."""
        if self.bounds.is_off and not self.is_over:
            self.is_over, self.is_deferring = True, False
            self.circumstances.bound_met = str(self.bounds.degraded[-1])
            self.when_over()

    def lose_step(self) -> bool:
        """Count everything recorded and not written as lost. Return whether there was anything."""
        with self.lock:
            before = self.tally.executed
            self._lose()
            return self.tally.executed > before

    def _lose(self) -> None:
        """Count what is recorded of the step and not written as lost."""
        parts = self._all_parts()
        self.tally.lost(all_ops(parts), count_tensors(parts))
        self.tally.left_out(self._counted)
        self._forget_records()
        self._counted = Counter()
        self._files.forget()
        self.reader.clear()

    def _take(self, op: OpRecord, io: IO, lives: Iterable[LiveTensor]) -> None:
        reader, entries = self.reader, self.taken
        if self._checks is not None:
            lives = self._checks.look(op, io, lives)
        if self._sides_of is not None and self._sides_of.take_all(op, io, lives, entries):
            return
        keeps_back = self.keeps_back
        try:
            for slot, argument, tensor, source, skip in lives:
                taken = reader.skip(tensor, skip) if skip else reader.take(tensor)
                taken.belongs(op, io, slot, argument, source)
                entries.append(taken)
                if taken.elements is not None:
                    if keeps_back:
                        taken.elements.own()
                    self._files.add(taken)
            self._write_taken()
        except BaseException:
            self._files.own_waiting()  # Ctrl-C, which the program may catch: keep the values that the elements have now
            raise

    def _write_taken(self) -> None:
        """Write what was read, unless it must wait."""
        if self._files.are_waiting:
            if self.keeps_back and self._files.waiting_bytes > self._most_held:
                self.place()
                self.release()
            if self.reader.must_finish:
                self.place()
                self.reader.finish_step()
                self._files.write_all()
            elif not self.keeps_back:
                self._files.write_ready()

    @property
    def keeps_back(self) -> bool:
        """Whether nothing may be written yet, because the step or the rank is not known."""
        return self.is_deferring or self._place is not None

    def _step_filed(self, steps: set[int], ops: Sequence[OpRecord], entries: Sequence[TensorSnapshot]) -> None:
        """Count a step that was passed to the writer."""
        self.tally.filed(steps, ops, entries)
        self._graphs.write_grown()
