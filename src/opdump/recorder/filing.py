"""A step as a recorder keeps it in memory: its parts, the limits of a running step, and the last steps of a run (`ring`).

ring = Ring(3, ("nan", "exception"))
dropped = ring.keep(ended)       # add a step that ended; returns the steps that no longer fit
ring.fire("exception: ValueError")
if ring.has_fired: ...ring.release()...
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from opdump.layouts.base import RankWriter
from opdump.plan import DumpPlan, Trigger
from opdump.recorder.bounds import Bounds
from opdump.recorder.live_checks import LiveChecks, Lookout
from opdump.recorder.program_facts import Tally
from opdump.recorder.snapshots import BlockNumbers, TensorSnapshot
from opdump.records import FiledTensor, OpRecord, SkipReason, TensorRecord
from opdump.step_table import NO_SUMMARY, Singles, StepTable, TemplateRun
from opdump.verdict import Verdict

# The parts of a step as a recorder keeps them: single records, and runs of blocks in columns.

TakenSingles = Singles[TensorSnapshot]
TakenPart = TemplateRun | TakenSingles
BYTES_OF_OPERATOR: Final = 1000
BYTES_OF_TENSOR: Final = 750
BYTES_OF_OPERATOR_AND_TENSORS: Final = 3000
"""Estimate for an operator with two or three tensors."""
StepRecords = tuple[int, Sequence[OpRecord], Sequence[FiledTensor], Sequence[str | None]]
"""A step, its operators, its tensors, and the files of these tensors."""


@dataclass(frozen=True, slots=True)
class EndedStep:
    """What was recorded until a step ended. Statistics are settled, nothing is written yet."""

    step: int
    steps: set[int]
    """The steps that the records name. There may be several, because threads share one step counter."""
    parts: Sequence[TakenPart]
    records: Sequence[StepRecords]
    counted: Counter[SkipReason]

    def with_files(self) -> EndedStep:
        """Return a copy with the files of elements that were written after the step ended."""
        records = [
            (number, ops, tensors, [each.file if isinstance(each, TensorSnapshot) else None for each in tensors])
            for number, ops, tensors, _ in self.records
        ]
        return replace(self, records=records)


def merged(parts: Iterable[TakenPart]) -> TakenSingles:
    """Return all single records of the parts."""
    singles = [part for part in parts if isinstance(part, Singles)]
    if len(singles) == 1:
        return singles[0]
    return Singles([op for part in singles for op in part.ops], [entry for part in singles for entry in part.tensors])


def all_ops(parts: Iterable[TakenPart]) -> list[OpRecord]:
    """Return all operators, including those of blocks."""
    return [op for part in parts for op in (part.ops if isinstance(part, Singles) else part.records())]


def count_tensors(parts: Iterable[TakenPart]) -> int:
    """Return the number of tensors, including those of blocks."""
    return sum(len(part.tensors if isinstance(part, Singles) else part.rows) for part in parts)


def held_bytes(parts: Iterable[TakenPart]) -> int:
    """Return an upper estimate of the memory that the parts use, in bytes, including elements. Measured without elements: 2.0 to 2.7 kB for an
    operator with 2.5 tensors.
    """
    total = 0
    for part in parts:
        if isinstance(part, Singles):
            total += BYTES_OF_OPERATOR * len(part.ops) + BYTES_OF_TENSOR * len(part.tensors)
            total += sum([entry.kept_bytes for entry in part.tensors if entry.elements is not None])
        else:
            total += BYTES_OF_OPERATOR * len(part.timestamps) + BYTES_OF_TENSOR * len(part.rows)
    return total


def steps_of(parts: Iterable[TakenPart]) -> set[int]:
    """Return the steps that the operators name."""
    steps: set[int] = set()
    for part in parts:
        if isinstance(part, Singles):
            steps.update([op.step for op in part.ops])
            steps.update([entry.op.step for entry in part.tensors])
        else:
            steps.add(part.step)
    return steps


def changed(parts: Sequence[TakenPart], change: Callable[[OpRecord], OpRecord]) -> list[TakenPart]:
    """Return the parts with replaced operators. `change` assigns the same new step, rank or order to all of them."""
    singles = merged(parts)
    found = {id(op): change(op) for op in singles.ops}
    for entry in singles.tensors:
        entry.op = found.get(id(entry.op), entry.op)
    return [
        replace(part, ops=[found[id(op)] for op in part.ops])
        if isinstance(part, Singles)
        else _changed_run(part, change)
        for part in parts
    ]


def _changed_run(run: TemplateRun, change: Callable[[OpRecord], OpRecord]) -> TemplateRun:
    before = run.op(0)
    after = change(before)
    return replace(run, step=after.step, rank_id=after.rank_id, later=run.later + after.order - before.order)


def records_of_step(
    parts: Sequence[TakenPart], step: int, *, is_only: bool, numbers: BlockNumbers | None
) -> tuple[Sequence[OpRecord], Sequence[FiledTensor], Sequence[str | None]]:
    """Return the operators and tensors of a step and the tensors' files. `is_only`: all parts belong to it. `numbers`: the numbers of blocks, if any
    ran.
    """
    if not is_only:
        parts = list(_of_step(parts, step))
    table = StepTable(parts, *(numbers or (np.array([NO_SUMMARY]),)))
    files: list[str | None] = []
    for part in parts:
        if isinstance(part, TemplateRun):
            files += part.files or [None] * len(part.rows)
        else:
            files += [entry.file for entry in part.tensors]
    return table.ops, table.tensors, files


def _of_step(parts: Iterable[TakenPart], step: int) -> Iterator[TakenPart]:
    """The parts of a step. Threads share one step counter: an operator of another thread belongs to the step in which it ran."""
    for part in parts:
        if isinstance(part, Singles):
            yield Singles(
                [op for op in part.ops if op.step == step], [each for each in part.tensors if each.op.step == step]
            )
        elif part.step == step:
            yield part


# How much of a running step a recorder keeps in memory. Beyond these limits, part of the step is written before the step ends.

MOST_OPS = 50_000
"""A step with more operators is written in parts, so that a program whose step never ends does not fill the memory."""
HELD_BYTES: Final = 2**28
"""Limit for elements that wait for the next step. Above it, the operators are assigned to the step that they name."""
_LEAST_OPS: Final = 100
"""A part of a step has at least this many operators, even if `max_memory` is small."""


def most_operators(plan: DumpPlan) -> int:
    """Return how many operators may wait for the end of their step."""
    if plan.held_bytes is None:
        return MOST_OPS
    return min(MOST_OPS, max(_LEAST_OPS, plan.held_bytes // 2 // BYTES_OF_OPERATOR_AND_TENSORS))


def most_held(plan: DumpPlan) -> int:
    """Return how many bytes of elements may wait until their step and rank are known."""
    return HELD_BYTES if plan.held_bytes is None else min(HELD_BYTES, plan.held_bytes // 2)


# Keeps the last steps of a run in memory until a trigger fires, like a flight recorder.


class Ring:
    """Keeps the last `size` steps. Only `fire` may be called from several threads."""

    def __init__(self, size: int, triggers: Sequence[Trigger], capacity: int | None = None) -> None:
        """`capacity`: limit in bytes, except that the last step is always kept; None for no limit."""
        self.fired: list[str] = []
        """The triggers that have fired so far, in words: `nan in step 7`."""
        self.size = size
        self._capacity = capacity
        self._bytes = 0
        self._triggers = triggers
        self._kept: deque[EndedStep] = deque()
        self._waits: list[str] = []
        """The triggers that have fired since the last step was written."""

    @property
    def has_fired(self) -> bool:
        return bool(self._waits)

    def fire(self, why: str) -> None:
        """Request that the kept steps and the running step are written. May be called from a signal handler and from any thread."""
        self._waits.append(why)

    def look(self, before: Verdict, now: Verdict, step: int) -> None:
        """Fire if the step has brought the first NaN or infinity of the run."""
        kind = {"nan": "nan", "infinity": "inf"}.get(now.kind)
        if kind in self._triggers and before.kind != now.kind:
            self.fire(f"{kind} in step {step}")

    def keep(self, ended: EndedStep) -> list[EndedStep]:
        """Add a step, or another part of the last one. Return the steps that were dropped."""
        self._kept.append(ended)
        self._bytes += held_bytes(ended.parts)
        dropped = []
        while self.steps > self.size or (self.is_overfull and self._kept[0].step != ended.step):
            dropped.append(self._kept.popleft())
            self._bytes -= held_bytes(dropped[-1].parts)
        return dropped

    def make_room(self, step: int, size: int) -> list[EndedStep]:
        """Drop the oldest steps to make room for `size` bytes of elements of the running step. Steps that are to be written stay."""
        dropped = []
        while not (self.has_fired or self.has_room(size)) and self._kept and self._kept[0].step != step:
            dropped.append(self._kept.popleft())
            self._bytes -= held_bytes(dropped[-1].parts)
        return dropped

    def has_room(self, size: int) -> bool:
        """Return whether `size` more bytes may be kept. Always true while a trigger waits for its steps to be written."""
        return self.has_fired or self._capacity is None or self._bytes + size <= self._capacity

    @property
    def steps(self) -> int:
        """Number of steps kept."""
        return len({each.step for each in self._kept})

    @property
    def is_overfull(self) -> bool:
        """Whether more memory is used than allowed. After `keep`, this can only be due to the last step."""
        return self._capacity is not None and self._bytes > self._capacity

    def release(self) -> list[EndedStep]:
        """Empty the ring and return its steps, oldest first, to be written."""
        self.fired += self._waits
        self._waits = []
        return self.drop()

    def drop(self) -> list[EndedStep]:
        """Empty the ring and return its steps, none of which was written."""
        kept = [*self._kept]
        self._kept.clear()
        self._bytes = 0
        return kept


# Files what was recorded: the elements of tensors, at once or with their step, and a step that has ended.

# Writes elements in layouts that write tensor by tensor: at once, except elements that are still being copied from a device.


class TensorFiles:
    """Tensors, constants and operator arguments that wait for the writer of a layout with a file per tensor. Other layouts ignore them."""

    def __init__(self, plan: DumpPlan, writer: RankWriter, bounds: Bounds) -> None:
        self._bounds = bounds
        self._writer = writer
        self.are_written: Final = plan.layout_facts.files == "tensors"
        self._copies = plan.layout_facts.copies_elements
        """`write_payload` copies elements before it returns, so that no other copy is needed."""
        self._tensors: list[TensorSnapshot] = []
        self.waiting_bytes = 0
        """Bytes of the tensors that wait for the writer."""
        self._constants: list[tuple[int, TensorSnapshot]] = []
        self._with_arguments: set[tuple[int, int, str]] = set()

    @property
    def are_waiting(self) -> bool:
        return bool(self._tensors)

    def add(self, taken: TensorSnapshot) -> None:
        """Add a tensor with elements."""
        self._tensors.append(taken)
        self.waiting_bytes += taken.held_bytes

    def add_constant(self, data_id: int, taken: TensorSnapshot) -> None:
        """Add a constant. It is written now unless it is still being copied from a device."""
        if taken.elements is not None and not taken.skip:
            self._constants.append((data_id, taken))
            if not taken.elements.are_pending:
                self._write_constants()

    def write_arguments(self, op: OpRecord) -> None:
        """Write the non-tensor arguments of an operator, once per step."""
        key = (op.graph_id, op.step, op.op_name)
        if op.arguments and key not in self._with_arguments:
            self._with_arguments.add(key)
            self._writer.write_kernel_args(op)

    def own_waiting(self) -> None:
        """Copy waiting elements that are still memory of the program, because the program continues now."""
        for entry in self._tensors:
            if entry.elements is not None:
                entry.elements.own()

    def write_ready(self) -> None:
        """Write elements that are in host memory. Elements that are being copied from a device wait for the end of the step."""
        later = []
        for entry in self._tensors:
            if entry.elements is not None and entry.elements.are_pending:
                later.append(entry)
            else:
                self._write(entry)
        self._tensors, self.waiting_bytes = later, sum(entry.held_bytes for entry in later)

    def write_all(self) -> None:
        self._write_constants()
        for entry in self._tensors:
            self._write(entry)
        self.forget_tensors()

    @property
    def copies(self) -> bool:
        """Whether elements go to the writer at once, which copies them."""
        return self._copies and self.are_written

    def write_followed(self, record: TensorRecord, size: int) -> str | None:
        """Write the elements of a tensor without a snapshot, `size` bytes. Return their location, or None if there is no room."""
        return self._writer.write_payload(record) if self._bounds.has_room(record.op.step, size) else None

    def write_kept(self, tensors: Iterable[TensorSnapshot]) -> None:
        """Write elements that were kept in memory with their step. This class keeps none; `RingElements` does."""

    def forget_tensors(self) -> None:
        self._tensors, self.waiting_bytes = [], 0

    def forget(self) -> None:
        self.forget_tensors()
        self._constants = []

    def end_step(self) -> None:
        """Start a new step, in which the arguments of operators are written again."""
        self._with_arguments.clear()

    def _write_constants(self) -> None:
        waiting, self._constants = self._constants, []
        for data_id, taken in waiting:
            if self._has_room(taken):
                self._writer.write_constant(data_id, taken.record())

    def _write(self, entry: TensorSnapshot) -> None:
        elements = entry.elements
        if not self.are_written or elements is None or not elements.are_held:
            return  # written before, in a call that was cut off by Ctrl-C or a full disk
        elements.filed(self._writer.write_payload(entry.record(lent=self._copies)) if self._has_room(entry) else None)

    def _has_room(self, entry: TensorSnapshot) -> bool:
        return entry.elements is None or self._bounds.has_room(entry.op.step, entry.elements.nbytes)


# Keeps elements in memory with their step, for a ring: they are written when the ring writes the step, or dropped with it.


class RingElements(TensorFiles):
    """Keeps the elements of the running step as long as they fit into memory. Constants wait for the first step that is written."""

    def __init__(
        self, plan: DumpPlan, writer: RankWriter, bounds: Bounds, make_room: Callable[[int, int], bool]
    ) -> None:
        """`make_room` is called with a step and a size in bytes, and returns whether that fits beside the earlier steps."""
        super().__init__(plan, writer, bounds)
        self._make_room = make_room
        self._bytes = 0
        """Bytes of the elements of the running step."""

    @property
    def copies(self) -> bool:
        """False: elements stay with the step."""
        return False

    def add(self, taken: TensorSnapshot) -> None:
        """Keep the elements of a tensor. If they do not fit, all elements of the step are dropped and no more are recorded."""
        assert taken.elements is not None
        if not self._bounds.takes_elements:
            taken.elements.filed(None)
            return
        self._tensors.append(taken)
        size = self._bytes + taken.kept_bytes
        if self._make_room(taken.op.step, size):
            taken.elements.own()
            self._bytes = size
            return
        for entry in self._tensors:
            if entry.elements is not None:
                entry.elements.filed(None)
        self.forget_tensors()
        self._bounds.ring_has_no_room(taken.op.step)

    def add_constant(self, data_id: int, taken: TensorSnapshot) -> None:
        if taken.elements is not None and not taken.skip:
            taken.elements.own()
            self._constants.append((data_id, taken))

    def write_ready(self) -> None:
        """Do nothing: elements stay with the step."""

    def write_all(self) -> None:
        """Do nothing: elements stay with the step."""

    def write_kept(self, tensors: Iterable[TensorSnapshot]) -> None:
        """Write the waiting constants, and the elements of a step."""
        self._write_constants()
        for entry in tensors:
            self._write(entry)

    def forget_tensors(self) -> None:
        super().forget_tensors()
        self._bytes = 0

    def end_step(self) -> None:
        """Hand the elements of the step over to the ring."""
        super().end_step()
        self.forget_tensors()

    def _has_room(self, entry: TensorSnapshot) -> bool:
        elements = entry.elements
        return elements is None or self._bounds.has_room(entry.op.step, elements.nbytes, are_kept=True)


# Processes a step that has ended: checks it, and writes it at once or, if the plan keeps the last steps in memory, when a trigger fires.


class StepFiling:
    """Passes steps to the writer and counts what became of them.

    `filed` receives the single records of each step that was written. `is_over` returns whether writing has become impossible.
    """

    def __init__(
        self,
        plan: DumpPlan,
        writer: RankWriter,
        tally: Tally,
        checks: LiveChecks | None,
        bounds: Bounds,
        filed: Callable[[set[int], Sequence[OpRecord], Sequence[TensorSnapshot]], object],
        is_over: Callable[[], bool],
    ) -> None:
        self._writer = writer
        self._tally = tally
        self._checks = checks
        self._bounds = bounds
        self._filed = filed
        self._is_over = is_over
        self._lookout = Lookout(plan.mode)
        self._ring = Ring(plan.ring, plan.triggers, plan.held_bytes) if plan.ring else None
        self.files: Final = (
            RingElements(plan, writer, bounds, self._make_room)
            if plan.ring and plan.saves_tensors
            else TensorFiles(plan, writer, bounds)
        )
        """Receives the elements of the running step."""

    @property
    def verdict(self) -> Verdict:
        """The first finding in the steps that have ended."""
        return self._lookout.verdict

    @property
    def fired(self) -> Sequence[str]:
        return () if self._ring is None else self._ring.fired

    def fire(self, why: str) -> None:
        """Write the steps kept in memory, and the running step when it ends."""
        if self._ring is not None:
            self._ring.fire(why)

    def write(self, ended: EndedStep) -> None:
        """Check a step, and pass it to the writer unless it is to be kept in memory."""
        before = None if self._ring is None else self.verdict
        for number, ran, kept, _ in ended.records:
            self._lookout.end_step(number, ran, kept)
            if self._checks is not None:
                self._checks.end_step(number, ran, kept)
        if self._ring is None:
            self._write(ended)
        elif before is not None:
            self._ring.look(before, self.verdict, ended.step)

    def count(self, ended: EndedStep) -> None:
        """Count the step that `write` received. If a trigger has fired, write the steps kept in memory."""
        if self._ring is None:
            self._count_filed(ended)
            return
        dropped = self._ring.keep(ended)
        self._count_dropped(dropped)
        if self._ring.is_overfull or (dropped and self._ring.steps < self._ring.size):
            self._bounds.ring_shrank(ended.step, 0 if self._ring.is_overfull else self._ring.steps)
        if self._ring.has_fired:
            self._file(self._ring)

    def end_run(self) -> None:
        """Write the steps kept in memory if a trigger has fired since the last step ended, and count the others as left out."""
        if self._ring is not None:
            if self._ring.has_fired and not self._is_over():
                self._file(self._ring)
            self._count_dropped(self._ring.drop())

    def count_lost(self, steps: Iterable[EndedStep]) -> None:
        """Count steps that should have been written and no longer can be."""
        for ended in steps:
            self._tally.lost(all_ops(ended.parts), count_tensors(ended.parts))
            self._tally.left_out(ended.counted)

    def _make_room(self, step: int, size: int) -> bool:
        """Return whether `size` bytes, all elements of the running step, fit beside the steps in memory. The oldest of these are dropped to make
        room.
        """
        assert self._ring is not None, "without a ring, elements are written at once"
        dropped = self._ring.make_room(step, size)
        self._count_dropped(dropped)
        if dropped and self._ring.steps + 1 < self._ring.size:
            self._bounds.ring_shrank(step, self._ring.steps + 1)
        return self._ring.has_room(size)

    def _file(self, ring: Ring) -> None:
        waiting = ring.release()
        try:
            while waiting:
                self.files.write_kept(merged(waiting[0].parts).tensors)
                self._write(waiting[0].with_files())
                self._count_filed(waiting.pop(0))
        except BaseException:
            self.count_lost(waiting)
            raise

    def _write(self, ended: EndedStep) -> None:
        for number, ran, kept, files in ended.records:
            self._writer.write_step(number, ran, kept, files, ended.counted if number == ended.step else {})

    def _count_filed(self, ended: EndedStep) -> None:
        self._tally.left_out(ended.counted)
        if self._is_over() or self._bounds.refused(ended.step):
            self._tally.lost(all_ops(ended.parts), count_tensors(ended.parts))
            return
        singles = merged(ended.parts)
        self._filed(ended.steps, singles.ops, singles.tensors)
        for part in ended.parts:
            if isinstance(part, TemplateRun):
                self._tally.filed_run(part.template)

    def _count_dropped(self, steps: Iterable[EndedStep]) -> None:
        for ended in steps:
            self._tally.dropped(all_ops(ended.parts))
            self._tally.left_out(ended.counted)
