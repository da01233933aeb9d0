"""Emits the operators of a compiled function, as its twin computed them: in the order of the jaxpr, once per loop iteration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from opdump.adapters.graph_runtime import GraphRun
from opdump.adapters.host import ChosenTensors, HostTensor
from opdump.adapters.jax.arguments import Arguments, Tensor
from opdump.adapters.jax.blocks import Blocks, Prepared
from opdump.adapters.jax.host import Facts, Memory, copied, host_tensor, memory_of, row_of
from opdump.adapters.jax.schedule import (
    Argument,
    Branches,
    Constant,
    Kept,
    Level,
    Opaque,
    Outer,
    Ref,
    Scan,
    Shards,
    Tap,
    While,
)
from opdump.adapters.jax.twin import PieceRun


@dataclass(slots=True)
class Given:
    """The inputs of a call."""

    arguments: Arguments
    """Their columns continue with the taps, piece by piece."""
    constants: Sequence[Any]
    kept: dict[int, tuple[Memory, Tensor]] = field(default_factory=dict)
    """Values of earlier pieces that later pieces read."""


@dataclass(slots=True)
class Values:
    """The values of a level in one iteration. Its taps are in columns, except those without an element."""

    given: Given
    tap: Callable[[int], Memory]
    facts: Sequence[Facts]
    """Of the taps."""
    first_tap: int
    """The position of the first tap in columns."""
    around: Values | None = None
    row: int = 0
    tensors: dict[Ref, Tensor] = field(default_factory=dict)

    def place(self, ref: Ref) -> tuple[int, int] | None:
        """The section of columns (as in `begins`) that has a value, and its number there; None if it is not in columns."""
        if isinstance(ref, Outer) and self.around is not None:
            place = self.around.place(ref.ref)
            # Section 0 is the same for all levels; the sections of levels shift by one per level.
            return place and (place[0] and place[0] + 1, place[1])
        facts, section = (self.given.arguments.facts, 0) if isinstance(ref, Argument) else (self.facts, 1)
        if not isinstance(ref, Argument | Tap) or facts[ref.index].element is None:
            return None
        return section, ref.index

    @property
    def begins(self) -> list[int]:
        """The beginnings of the sections in columns: arguments, taps of this level, taps of each level around it."""
        found: list[int] = [0]
        level: Values | None = self
        while level is not None:
            found.append(level.first_tap)
            level = level.around
        return found

    def memory(self, ref: Ref) -> Memory:
        if isinstance(ref, Tap):
            return self.tap(ref.index)
        if isinstance(ref, Argument):
            return self.given.arguments.memory(ref.index)
        if isinstance(ref, Constant):
            return memory_of(copied(self.given.constants[ref.index]))
        if isinstance(ref, Kept):
            return self.given.kept[ref.number][0]
        if isinstance(ref, Opaque):
            return ref.kind
        assert self.around is not None, "only bodies read what is around them"
        memory = self.around.memory(ref.ref)
        return memory if isinstance(ref, Outer) else row_of(memory, self.row)

    def number(self, ref: Ref) -> int:
        """The value of a single integer."""
        memory = self.memory(ref)
        assert not isinstance(memory, str), memory
        return int((memory.raw() if isinstance(memory, HostTensor) else memory).reshape(-1)[0])

    def tensor(self, ref: Ref) -> Tensor:
        """The tensor of a value. Operators that read the same value get the same object, so it is summarised once."""
        if isinstance(ref, Outer) and self.around is not None:
            return self.around.tensor(ref.ref)
        if isinstance(ref, Argument):
            return self.given.arguments.tensor(ref.index)
        if isinstance(ref, Kept):
            return self.given.kept[ref.number][1]
        known = self.tensors.get(ref)
        if known is None:
            memory = self.memory(ref)
            known = self.tensors[ref] = memory if isinstance(memory, HostTensor) else host_tensor(memory)
        return known


class Emitter:
    """Emits one call of a function."""

    def __init__(self, given: Given, run: GraphRun, blocks: Blocks) -> None:
        self._given = given
        self._run = run
        self._blocks = blocks

    def emit(self, piece: PieceRun) -> None:
        """Emit the operators of a piece that has run, after those of the previous piece."""
        first_tap = self._given.arguments.columns.extend(piece.pointers())
        values = Values(self._given, piece.memory, piece.facts, first_tap)
        self._level(piece.level, values, self._run)
        kept = self._given.kept
        for number, tap in piece.kept.items():
            tensor = values.tensor(Tap(tap))
            if isinstance(tensor, HostTensor) and piece.facts[tap].element is not None:
                self._given.arguments.columns.lend_row(first_tap + tap, tensor)
            kept[number] = piece.memory(tap), tensor
        for number in piece.ends:
            kept.pop(number, None)
        self._given.arguments.columns.cut(first_tap)

    def _level(self, level: Level, values: Values, run: GraphRun) -> None:
        for part in self._blocks.of(level):
            if run.is_over:
                return
            if isinstance(part, Prepared):
                emit_prepared(part, values, run)
                continue
            within = next((each.operator for inner in part.inner for each in inner.each()), None)
            with run.recorder.losing(within) if within is not None else nullcontext():
                self._part(part, values, run)

    def _part(self, part: Scan | While | Branches | Shards, values: Values, run: GraphRun) -> None:
        """Emit the levels of a loop, a branch or shards."""
        if isinstance(part, Scan):
            for row in reversed(range(part.length)) if part.reverse else range(part.length):
                self._trip(part.body, values, part.taps, row, run)
        elif isinstance(part, While):
            self._while(part, values, run)
        elif isinstance(part, Branches):
            # `lax.switch` also clamps an index that is out of range.
            which = int(np.clip(values.number(part.index), 0, len(part.levels) - 1))
            self._trip(part.levels[which], values, part.taps[which], None, run)
        else:
            self._shards(part, values, run)

    def _while(self, entry: While, values: Values, run: GraphRun) -> None:
        trips = values.number(Tap(entry.trips))
        for row in range(min(trips, entry.capacity)):
            self._trip(entry.condition, values, entry.condition_taps, row, run)
            self._trip(entry.body, values, entry.body_taps, row, run)
        missing = max(0, trips - entry.capacity)  # iterations whose values were not kept
        run.count_skipped({"not observed": missing * sum(1 for level in entry.inner for _ in level.each())})
        self._level(entry.last, values, run)

    def _shards(self, entry: Shards, values: Values, run: GraphRun) -> None:
        for row in range(entry.count):
            self._trip(entry.body, values, entry.taps, row, run.on_device(row))

    def _trip(self, level: Level, around: Values, taps: Sequence[int], row: int | None, run: GraphRun) -> None:
        """Emit an inner level: one row of its taps, or the whole taps if `row` is None (a branch)."""
        inside = self._blocks.inside(taps, around.facts, has_rows=row is not None)
        columns = self._given.arguments.columns
        pointers = columns.pointers[around.first_tap + inside.taps] + (row or 0) * inside.sizes
        first_tap = columns.extend(pointers)
        tap = partial(_tap_of, around, taps, row)
        try:
            self._level(level, Values(self._given, tap, inside.facts, first_tap, around, row or 0), run)
        finally:
            columns.cut(first_tap)


def emit_prepared(part: Prepared, values: Values, run: GraphRun) -> None:
    """Emit the operators of a block."""
    given = values.given.arguments

    def tensor(place: int) -> Tensor:
        return values.tensor(part.refs[place])

    def found() -> tuple[Sequence[Tensor], Sequence[tuple[int, int] | None]]:
        return [*map(values.tensor, part.refs)], [*map(values.place, part.refs)]

    def whole() -> ChosenTensors:
        choice = part.choice(given.facts, found)
        return choice.of(given.columns, values.begins, [tensor(number) for number in choice.objects])

    run.emit_block(part.block, tensor, whole)


def _tap_of(around: Values, taps: Sequence[int], row: int | None, index: int) -> Memory:
    memory = around.tap(taps[index])
    return memory if row is None else row_of(memory, row)
