"""The recorder of layouts that file tensor by tensor: elements go to the writer as soon as they are taken.

Where the dump cannot be written any more, the plan's `on_error` says what happens: "stop" raises in the program, "continue" tells of it
once, and from then on the recorder records nothing.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from opdump.checks.checked import Checked
from opdump.errors import OpdumpError
from opdump.graph import Graph, GraphValue
from opdump.interpreter.garbage import no_garbage_collection
from opdump.interpreter.interrupts import not_interrupted
from opdump.plan import DumpPlan
from opdump.recorder.bounds import Bounds
from opdump.recorder.capture_time import CaptureClock
from opdump.recorder.circumstances import Circumstances, Nothing, unmatched_kernels, why_nothing
from opdump.recorder.filing import StepFiling
from opdump.recorder.graphs import GrowingGraphs
from opdump.recorder.guarded import guarded
from opdump.recorder.limits import most_held, most_operators
from opdump.recorder.live_checks import LiveChecks
from opdump.recorder.loss_spikes import LossSpikes
from opdump.recorder.own_errors import (
    Losing,
    LostOperators,
    cut_short,
    failure_text,
    is_defect,
    lost_where_it_fails,
    once_more,
    stopped_by,
    told_where_it_stops,
    traceback_of,
)
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
from opdump.recorder.step_parts import (
    EndedStep,
    TakenPart,
    all_ops,
    changed,
    count_tensors,
    merged,
    records_of_step,
    steps_of,
)
from opdump.recorder.tally import Tally
from opdump.recorder.writers import StepWriter, SupportsHistory
from opdump.records import IO, OpRecord, SkipReason
from opdump.statistics import ElementStatistics
from opdump.step_columns import BlockRun, OperatorSequence, Singles
from opdump.verdict import Verdict

_LOG = logging.getLogger("opdump")

_RECENT: Final = 100
"""Operators that have begun, among which one that was lost is looked for."""
MOST_NAMES = 100_000
"""Names of operators that are remembered for what nothing matched."""


class Recorder:
    """Collects the operators of a step and hands them to a layout's writer.

    Threads may record at the same time; `end_step` belongs to the thread that drives the steps.
    """

    def __init__(self, plan: DumpPlan, writer: StepWriter, reader: Reader) -> None:
        self.plan = plan
        self.tally = Tally(plan.steps)
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
        self.when_over: Callable[[], None] = lambda: None
        """Called once when that happens, while an operator runs: an adapter may take itself out of the way."""
        self.lost: Final = LostOperators()
        self.when_lost: Callable[[], None] = lambda: None
        """Called when an operator was lost: what an adapter learned of it does not hold."""
        self.clock: Final = CaptureClock()
        self.bounds: Final = Bounds(plan, self.clock)
        self._checks = None if plan.checks is None else LiveChecks(plan, reader)
        self.writer: Final = writer
        self._writer = writer = guarded(writer, self._failed)
        self.bounds.reader, self.bounds.writer = reader, writer
        self._graphs = GrowingGraphs(writer)
        self.graph: Final = self._graphs.of
        self.constant_at: Final = self._graphs.constant_name
        self._filing = StepFiling(
            plan, writer, self.tally, self._checks, self.bounds, self._step_filed, lambda: self.is_over
        )
        self._files = self._filing.files
        self.file_elements: Final = self._files.write_followed
        """Of a tensor of a run, before that is added; where they are (`BlockRun.files`). Only where they are copied at once."""
        self.copies_elements: Final = self._files.copies
        self._most_ops, self._most_held = most_operators(plan), most_held(plan)
        self.fire: Final = self._filing.fire
        """The last steps are to be filed, where the plan keeps them in memory (`ring`), and the one that runs when it has ended."""
        self.losses: Final = LossSpikes(self.fire) if plan.ring and "loss-spike" in plan.triggers else None
        self.reader: Final = reader
        self._statistics = ElementStatistics(plan.statistic_category if plan.saves_statistics else ())
        self._sides_of = reader if isinstance(reader, SupportsSides) else None
        """The same reader where it takes all tensors of a side at once."""
        self._rows_of = reader if isinstance(reader, SupportsRows) else None
        self._blocks_of = reader if isinstance(reader, SupportsBlocks) else None
        """The same reader where it takes all tensors of many operators at once, and nobody looks at them one by one."""
        self.takes_runs: Final = self._checks is None and not (plan.save_kernel_args or self._statistics.of_summary)
        """Whether `add_run` may be called: nobody looks at the operators and tensors of a run one by one."""
        if not self.takes_runs:
            self._blocks_of = None
        self._parts: list[TakenPart] = []
        """What was recorded of the step before `_ops` and `taken`."""
        self._ops_in_parts = 0
        self._ops: list[OpRecord] = []
        self._counted: Counter[SkipReason] = Counter()
        self.taken: list[TensorSnapshot] = []
        """The tensors that were taken one by one since the last run, or since the step began."""
        self._filed_ops = 0
        self.lock = threading.RLock()  # who holds it records alone
        self._place: Callable[[], int] | None = None
        self.when_placed: list[Callable[[int], object]] = []  # called with the number of the process
        self.when_filed: Callable[[], object] = lambda: None
        """Called when a step, or a part of one, was handed to the writer and counted."""
        self.gather: Callable[[], None] = lambda: None
        """Called where all that was recorded is looked at: an adapter may hold a run that goes on, and adds it (`add_run`)."""

    def wants(self, step: int) -> bool:
        """Whether what runs in a step is recorded: the plan asks for it, the bounds let it, and the dump goes on."""
        return step in self.plan.steps and not self.is_over and self.bounds.wants(step)

    def wait_for_place(self, place: Callable[[], int]) -> None:
        """Nobody knows yet which rank this process is: keeps files back until `place`, which asks this function."""
        self._place = place

    @told_where_it_stops
    def place(self) -> None:
        """From now on files are written, into the directory of the rank that the process has by now."""
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
        """What the checks found in the steps that were filed; None where the plan asks for none."""
        return None if self._checks is None else self._checks.checked()

    @property
    def verdict(self) -> Verdict:
        """What was found first in the steps that were filed."""
        return self._filing.verdict

    def file_graph(self, graph: Graph, files: Mapping[str, bytes]) -> None:
        """Files a graph that the runtime has described itself, in `files` by their paths in MindSpore's synchronous layout."""
        if not self.is_over:
            self._graphs.file(graph, files)

    def graphs_ran(self, step: int, graph_ids: Iterable[int]) -> None:
        """These graphs executed something in a step, whether or not something of it is recorded."""
        if isinstance(self._writer, SupportsHistory) and not self.is_over:
            self._writer.graphs_ran(step, graph_ids)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """For what else is written of the dump, beside what the recorder files: a failure in the block is one of the dump."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  told as what the writer meets is
            self._failed(error)

    def before_op(self, op: OpRecord, inputs: Iterable[LiveTensor], changes: Collection[str] | None = None) -> OpRecord:
        """Reads the inputs of an operator that is about to run; its record, which `after_op` is to be given.

        `changes` names the arguments that the operator writes into; None where that is not known. A recorder that files few operators
        may read what the operator leaves as it is when it has run.
        """
        self._begin_op(op, inputs, changes)
        return op

    @lost_where_it_fails
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

    @lost_where_it_fails
    def after_op(self, op: OpRecord, outputs: Iterable[LiveTensor]) -> None:
        """Reads the outputs of an operator that has run."""
        if outputs and self.plan.outputs and not self.is_over:
            self.gather()
            with self.lock:
                self._take(op, "output", outputs)

    @property
    def takes_blocks(self) -> bool:
        """Whether `take_block` may be called: where nothing but summaries is taken of tensors."""
        return self._blocks_of is not None and self._blocks_of.takes_blocks

    @told_where_it_stops
    def take_block(self, sequence: OperatorSequence, step: int, timestamps: Sequence[int], tensors: Any) -> bool:
        """Reads what operators read and wrote that have run one after the other; their slots name tensors by place among `tensors`.

        False where a defect kept it from that, and nothing of them was recorded: they may be handed over one by one.
        """
        if self.is_over or self._blocks_of is None:
            return True
        try:
            with self.lock:
                if self._ops_in_parts + len(self._ops) >= self._most_ops:
                    self.end_step(step, is_part=True)
                facts, rows = self._blocks_of.take_block(tensors)
                pattern = sequence.pattern(facts)
                self.add_run(BlockRun(pattern, step, timestamps, rows[pattern.tensor_places]))
        except Exception as error:
            if self.plan.on_error == "stop" or not is_defect(error):
                raise
            _LOG.debug("opdump: operators are recorded one by one", exc_info=error)
            return False
        return True

    def add_run(self, run: BlockRun) -> None:
        """Appends operators that ran one after the other; the reader has their summaries."""
        with self.lock:
            parts, count = [*self._gathered(), run], self._ops_in_parts + len(self._ops) + len(run.timestamps)
            self._forget_records()
            self._parts, self._ops_in_parts = parts, count

    def add_single(self, op: OpRecord, taken: Sequence[TensorSnapshot]) -> None:
        """Appends an operator, and what was read of it."""
        with self.lock:
            self._ops.append(op)
            self.taken += taken

    @told_where_it_stops
    def read_ahead(self, tensors: Any) -> None:
        """Reads tensors that `take_block` is given later, when their memory is gone."""
        if self._blocks_of is not None and not self.is_over:
            with self.lock:
                self._blocks_of.take_ahead(tensors)

    def _all_parts(self) -> list[TakenPart]:
        """All that is recorded and not filed."""
        self.gather()
        return self._gathered()

    def _gathered(self) -> list[TakenPart]:
        return [*self._parts, Singles(self._ops, self.taken)] if self._ops or self.taken else self._parts

    def _forget_records(self) -> None:
        self._parts, self._ops_in_parts, self._ops, self.taken = [], 0, [], []

    def failed_op(
        self, op: OpRecord, error: BaseException, inputs: Iterable[LiveTensor], opened: OpRecord | None = None
    ) -> None:
        """An operator raised. What was read of it before stays; only exception mode files more."""

    def abandoned_op(self, op: OpRecord) -> None:
        """An operator turned out to be none, or was cut off. What was read of it before stays."""

    def abandon(self) -> None:
        """In a forked process: a thread that is not there any more may have held the lock."""
        self.lock = threading.RLock()

    def defer(self) -> None:
        """From now on nobody knows yet which step the operators belong to: keeps their files back until `release`."""
        with self.lock:
            self.is_deferring = not self._all_parts() and not self._counted and not self.is_over

    @told_where_it_stops
    def release(self) -> None:
        """The held operators belong to the step that they name."""
        with self.lock:
            if self.is_deferring:
                self.is_deferring = False
                self._files.write_ready()

    @told_where_it_stops
    def reassign_step(self, step: int) -> None:
        """The held operators belong to `step`, which was filed already: they ran after its end, and no other step came."""
        with self.lock:
            self._change_ops(lambda op: replace(op, step=step, order=op.order + self._filed_ops))
            self.release()

    def _change_ops(self, change: Callable[[OpRecord], OpRecord]) -> None:
        parts, count = changed(self._all_parts(), change), self._ops_in_parts + len(self._ops)
        self._forget_records()
        self._parts, self._ops_in_parts = parts, count

    def discard(self) -> None:
        """The held operators belong to no step that is dumped: nothing of them was filed yet."""
        with self.lock:
            self.gather()
            self.is_deferring = False
            self._forget_records()
            self._files.forget_tensors()
            self._counted = Counter()
            self.reader.clear()

    def skip_op(self, op: OpRecord) -> None:
        """Counts and lists an operator that leaves no data (`op.skip` says why)."""
        if self.is_over:
            return
        self.gather()
        if self._ops_in_parts + len(self._ops) >= self._most_ops:
            self.end_step(op.step, is_part=True)
        self._ops.append(op)

    def count_op(self, reason: SkipReason, count: int = 1) -> None:
        """Counts operators that leave no data and were listed before, in this step or an earlier one."""
        with self.lock:
            if count and not self.is_over:
                self._counted[reason] += count

    @told_where_it_stops
    def constant(self, op: OpRecord, live: Live) -> str:
        """Files a tensor that no operator made, once per place that reads it; the name of its source (`data-3`)."""
        known = self._graphs.constant_name(op, live.slot)
        if known or self.is_over:
            return known or "data-0"
        with self.lock:
            data_id = self._graphs.add_constant(op, live.slot)
        facts = self.reader.skip(live.tensor, "not selected")
        self.graph(op.graph_id).add_constant(GraphValue(f"data-{data_id}", facts.dtype, facts.shape))
        if self.bounds.takes_elements and self._files.takes_constants and self.plan.mode.files_values:
            with self.lock:
                taken = self.reader.take(live.tensor)
                taken.belongs(op, "output", 0, "", "")
                self._files.add_constant(data_id, taken)
        return f"data-{data_id}"

    @not_interrupted
    @told_where_it_stops
    def end_step(self, step: int, *, is_part: bool = False) -> None:
        """Files the statistics, the index rows and the graphs of the step; nothing where nothing was recorded. `is_part`: it goes on."""
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
        self._files.write_all()  # where this fails, nothing is left below
        parts, counted = self._all_parts(), self._counted
        singles, runs = merged(parts), [part for part in parts if isinstance(part, BlockRun)]
        if len(self.names_seen) < MOST_NAMES:
            self.names_seen.update([(op.op_name, op.op_type) for op in singles.ops])
            for run in runs:
                self.names_seen.update(run.pattern.names)
        settle(self.reader, singles.tensors, self._statistics)
        numbers = block_numbers(self._rows_of) if runs else None
        steps = steps_of(parts) | ({step} if counted else set())
        # Only now: what stops this before leaves them to be filed later, or to be counted as lost.
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
            # Ctrl-C, or a failure that is to stop the program: what was to be filed is in nobody's hands now.
            self._filing.count_lost([EndedStep(step, steps, parts, (), counted)])
            self.failure = self.failure or cut_short(self.plan.path, step, error)
            raise
        self.reader.clear()
        self._files.end_step()
        self._filed_ops = len(singles.ops) + sum(len(run.timestamps) for run in runs) + counted.total()
        self._filing.count(ended)

    @property
    def fired(self) -> Sequence[str]:
        """What fired so far, in words."""
        return self._filing.fired

    def end_run(self) -> None:
        """The run has ended: what is kept in memory is filed where a trigger has fired, or counted as left out."""
        with self.lock:
            self._filing.end_run()

    def unmatched_kernels(self) -> list[str]:
        """What `kernels` names and no operator had, in words, with the nearest names of what was there."""
        return unmatched_kernels(self.plan, self.matched_kernels, self.names_seen)

    def why_nothing(self) -> Nothing | None:
        """Why nothing was captured; None where something was."""
        around, tally = self.circumstances, self.tally
        if tally.captured or (tally.tensors and not around.unable):
            return None
        if self.plan.selection == "kernels" and not self.matched_kernels and tally.executed:
            around.chose_nothing = "names"
        return why_nothing(self.plan, around, executed=tally.executed, skipped=tally.skipped)

    def stopped(self, error: Exception) -> None:
        """Something stopped the capture beside the program: that is no failure of the program."""
        if isinstance(error, OpdumpError) and self.failure is not None and self.plan.on_error == "stop":
            raise error  # on its way to the program already
        self._failed(error)

    def losing(self, what: object) -> Losing:
        """For a block that records an operator, or prepares it: an error in it goes to `loses`."""
        return Losing(self, what)

    def loses(self, what: object, error: Exception) -> None:
        """A defect of opdump has kept `what`, an operator, from being recorded whole: it is counted, and a warning has the reason.

        Where it is none, or the plan wants no dump that lacks something (`on_error`), the dump ends, as in `stopped`.
        """
        if self.plan.on_error == "stop" or not is_defect(error):
            self.stopped(error)
            return
        with self.lock:
            if self.is_over:
                return
            self.lost.add(what, error)
            op = getattr(what, "op", what)
            # An operator that began is counted as one that ran.
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
                _LOG.error("opdump: %s. The program goes on, and nothing more is dumped", text, exc_info=trace)
                self.is_over, self.is_deferring = True, False
                self._lose()
                self.when_over()

    def stop_at_bound(self) -> None:
        """Nothing is recorded any more where a bound says so; all that was is filed."""
        if self.bounds.is_off and not self.is_over:
            self.is_over, self.is_deferring = True, False
            self.circumstances.bound_met = str(self.bounds.degraded[-1])
            self.when_over()

    def lose_step(self) -> bool:
        """What is recorded and not filed cannot be filed any more; whether there was anything."""
        with self.lock:
            before = self.tally.executed
            self._lose()
            return self.tally.executed > before

    def _lose(self) -> None:
        """What is recorded of the step and not filed is counted as lost."""
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
            self._files.own_waiting()  # Ctrl-C, which the program may catch: what is filed later is what was there now
            raise

    def _write_taken(self) -> None:
        """Files what was taken, unless it is to wait."""
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
        """Whether nothing is to be filed yet: nobody knows the step, or the rank."""
        return self.is_deferring or self._place is not None

    def _step_filed(self, steps: set[int], ops: Sequence[OpRecord], entries: Sequence[TensorSnapshot]) -> None:
        """A step was handed to the writer."""
        self.tally.filed(steps, ops, entries)
        self._graphs.write_grown()
