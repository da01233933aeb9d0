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

from opdump.plan import DumpPlan, Trigger
from opdump.recorder.snapshots import BlockNumbers, TensorSnapshot
from opdump.records import FiledTensor, OpRecord, SkipReason
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
