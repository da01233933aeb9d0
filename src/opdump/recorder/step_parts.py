"""The parts of a step as a recorder holds them: records one by one, and runs of blocks in columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from opdump.recorder.snapshots import BlockNumbers, TensorSnapshot
from opdump.records import FiledTensor, OpRecord, SkipReason
from opdump.step_columns import BlockRun, Singles, StepColumns

TakenSingles = Singles[TensorSnapshot]
TakenPart = BlockRun | TakenSingles
BYTES_OF_OPERATOR: Final = 1000
BYTES_OF_TENSOR: Final = 750
BYTES_OF_OPERATOR_AND_TENSORS: Final = 3000
"""Of one that has two or three."""
StepRecords = tuple[int, Sequence[OpRecord], Sequence[FiledTensor], Sequence[str | None]]
"""A step, its operators and tensors, and the files of these."""


@dataclass(frozen=True, slots=True)
class EndedStep:
    """What was recorded until a step ended, settled and not filed yet."""

    step: int
    steps: set[int]
    """Those that its records name: threads share one count of steps."""
    parts: Sequence[TakenPart]
    records: Sequence[StepRecords]
    counted: Counter[SkipReason]

    def with_files(self) -> EndedStep:
        """The same where elements were filed since it ended."""
        records = [
            (number, ops, tensors, [each.file if isinstance(each, TensorSnapshot) else None for each in tensors])
            for number, ops, tensors, _ in self.records
        ]
        return replace(self, records=records)


def merged(parts: Iterable[TakenPart]) -> TakenSingles:
    """All that was recorded one by one."""
    singles = [part for part in parts if isinstance(part, Singles)]
    if len(singles) == 1:
        return singles[0]
    return Singles([op for part in singles for op in part.ops], [entry for part in singles for entry in part.tensors])


def all_ops(parts: Iterable[TakenPart]) -> list[OpRecord]:
    """All operators, those of blocks too."""
    return [op for part in parts for op in (part.ops if isinstance(part, Singles) else part.records())]


def count_tensors(parts: Iterable[TakenPart]) -> int:
    """How many tensors there are, those of blocks too."""
    return sum(len(part.tensors if isinstance(part, Singles) else part.rows) for part in parts)


def held_bytes(parts: Iterable[TakenPart]) -> int:
    """What parts take in memory, with the elements that they hold: an estimate from above. Measured were, without elements, 2.0 to 2.7 kB for
    an operator with 2.5 tensors.
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
    """The steps that operators name."""
    steps: set[int] = set()
    for part in parts:
        if isinstance(part, Singles):
            steps.update([op.step for op in part.ops])
            steps.update([entry.op.step for entry in part.tensors])
        else:
            steps.add(part.step)
    return steps


def changed(parts: Sequence[TakenPart], change: Callable[[OpRecord], OpRecord]) -> list[TakenPart]:
    """The parts with other operators: `change` gives all of them another step, rank or order, and the same way."""
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


def _changed_run(run: BlockRun, change: Callable[[OpRecord], OpRecord]) -> BlockRun:
    before = run.op(0)
    after = change(before)
    return replace(run, step=after.step, rank_id=after.rank_id, later=run.later + after.order - before.order)


def records_of_step(
    parts: Sequence[TakenPart],
    step: int,
    *,
    is_only: bool,
    numbers: BlockNumbers | None,
) -> tuple[Sequence[OpRecord], Sequence[FiledTensor], Sequence[str | None]]:
    """The operators and tensors of a step, with their files. `is_only`: all parts are of it; `numbers`: those of blocks, where some ran."""
    if not is_only:
        # Threads share one count of steps: what another thread ran belongs to the step that it was in.
        parts = [
            Singles([op for op in part.ops if op.step == step], [each for each in part.tensors if each.op.step == step])
            if isinstance(part, Singles)
            else part
            for part in parts
            if isinstance(part, Singles) or part.step == step
        ]
    if numbers is None or not any(isinstance(part, BlockRun) for part in parts):
        singles = merged(parts)
        return singles.ops, singles.tensors, [entry.file for entry in singles.tensors]
    columns = StepColumns(parts, *numbers)
    files: list[str | None] = []
    for part in parts:
        if isinstance(part, Singles):
            files += [entry.file for entry in part.tensors]
        else:
            files += part.files or [None] * len(part.rows)
    return columns.ops, columns.tensors, files
