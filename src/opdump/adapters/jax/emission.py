"""Emits what ran in a compiled function: the operators of its twin in the order of the jaxpr, each trip of a loop for itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from opdump.adapters.graph_runtime import GraphRun
from opdump.adapters.host import HostTensor
from opdump.adapters.jax.arguments import Arguments, Tensor
from opdump.adapters.jax.blocks import Blocks, Prepared
from opdump.adapters.jax.host import Facts, Memory, host_tensor, memory_of, row_of
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
    """What a function was given."""

    arguments: Arguments
    """The taps follow them in columns, piece by piece."""
    constants: Sequence[Any]
    kept: dict[int, tuple[Memory, Tensor]] = field(default_factory=dict)
    """What pieces made that were emitted, and later ones read."""


@dataclass(slots=True)
class Values:
    """The values of a level in one trip. Those of the outermost level are in columns."""

    given: Given
    tap: Callable[[int], Memory]
    around: Values | None = None
    row: int = 0
    tensors: dict[Ref, Tensor] = field(default_factory=dict)
    facts: Sequence[Facts] | None = None
    """Of the taps, where these are in columns."""
    first_tap: int = 0
    """The place of the first of them."""

    def place(self, ref: Ref) -> int | None:
        """The place of a value in columns; None where it is not in them."""
        if self.facts is not None and isinstance(ref, Tap):
            return None if self.facts[ref.index].element is None else self.first_tap + ref.index
        if isinstance(ref, Argument):
            return None if self.given.arguments.facts[ref.index].element is None else ref.index
        return None

    def memory(self, ref: Ref) -> Memory:
        if isinstance(ref, Tap):
            return self.tap(ref.index)
        if isinstance(ref, Argument):
            return self.given.arguments.memory(ref.index)
        if isinstance(ref, Constant):
            return memory_of(np.asarray(self.given.constants[ref.index]))
        if isinstance(ref, Kept):
            return self.given.kept[ref.number][0]
        if isinstance(ref, Opaque):
            return ref.kind
        assert self.around is not None, "only bodies read what is around them"
        memory = self.around.memory(ref.ref)
        return memory if isinstance(ref, Outer) else row_of(memory, self.row)

    def number(self, ref: Ref) -> int:
        """The value, which is one whole number."""
        memory = self.memory(ref)
        assert not isinstance(memory, str), memory
        return int((memory.raw() if isinstance(memory, HostTensor) else memory).reshape(-1)[0])

    def tensor(self, ref: Ref) -> Tensor:
        """The same object for each operator that reads the value: it is looked at once."""
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
        """The operators of a piece that has run; they follow those of the piece before it."""
        first_tap = self._given.arguments.columns.extend(piece.pointers())
        values = Values(self._given, piece.memory, facts=piece.facts, first_tap=first_tap)
        self._level(piece.level, values, self._run)
        kept = self._given.kept
        for number, tap in piece.kept.items():
            tensor = values.tensor(Tap(tap))
            if isinstance(tensor, HostTensor) and piece.facts[tap].element is not None:
                self._given.arguments.columns.lend_row(first_tap + tap, tensor)
            kept[number] = piece.memory(tap), tensor
        for number in piece.ends:
            kept.pop(number, None)

    def _level(self, level: Level, values: Values, run: GraphRun) -> None:
        for part in self._blocks.of(level):
            if run.is_over:
                return
            if isinstance(part, Prepared):
                emit_prepared(part, values, run)
            elif isinstance(part, Scan):
                for row in reversed(range(part.length)) if part.reverse else range(part.length):
                    self._level(part.body, self._inside(values, part.taps, row), run)
            elif isinstance(part, While):
                self._while(part, values, run)
            elif isinstance(part, Branches):
                # As `lax.switch` does with an index that names no branch.
                which = int(np.clip(values.number(part.index), 0, len(part.levels) - 1))
                inner = Values(self._given, partial(_tap_of, values, part.taps[which]), values)
                self._level(part.levels[which], inner, run)
            else:
                self._shards(part, values, run)

    def _while(self, entry: While, values: Values, run: GraphRun) -> None:
        trips = values.number(Tap(entry.trips))
        for row in range(min(trips, entry.capacity)):
            self._level(entry.condition, self._inside(values, entry.condition_taps, row), run)
            self._level(entry.body, self._inside(values, entry.body_taps, row), run)
        missing = max(0, trips - entry.capacity)  # there was no room for them
        run.count_skipped({"not observed": missing * sum(1 for level in entry.inner for _ in level.each())})
        self._level(entry.last, values, run)

    def _shards(self, entry: Shards, values: Values, run: GraphRun) -> None:
        for row in range(entry.count):
            self._level(entry.body, self._inside(values, entry.taps, row), run.on_device(row))

    def _inside(self, values: Values, taps: Sequence[int], row: int) -> Values:
        return Values(self._given, lambda index: row_of(values.tap(taps[index]), row), values, row)


def emit_prepared(part: Prepared, values: Values, run: GraphRun) -> None:
    """The operators of a block."""
    if values.facts is None or not run.takes(part.block):
        run.emit_block(part.block, [*map(values.tensor, part.refs)])
        return
    given = values.given.arguments

    def found() -> tuple[Sequence[Tensor], Sequence[int | None]]:
        return [*map(values.tensor, part.refs)], [*map(values.place, part.refs)]

    choice = part.choice(given.facts, values.first_tap, found)
    objects = [values.tensor(part.refs[number]) for number in choice.objects]
    run.emit_block(part.block, choice.of(given.columns, objects))


def _tap_of(around: Values, taps: Sequence[int], index: int) -> Memory:
    return around.tap(taps[index])
