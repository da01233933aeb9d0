"""Emits what ran in a compiled function: the operators of its twin in the order of the jaxpr, each trip of a loop for itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from opdump.adapters.graph_runtime import GraphRun, NamedOperator, live_tensor
from opdump.adapters.host import HostTensor
from opdump.adapters.jax.host import host_tensor
from opdump.adapters.jax.schedule import (
    Argument,
    Branches,
    Constant,
    Equation,
    Level,
    Opaque,
    Outer,
    Ref,
    Row,
    Scan,
    Shards,
    Slot,
    Tap,
    While,
)
from opdump.recorder import LiveTensor

Tensor = HostTensor | str


@dataclass(slots=True)
class Given:
    """Arguments and constants of a function, as arrays of numpy; a text is the type of what is no such array."""

    arguments: Sequence[Any]
    tensors: Sequence[Tensor]
    """The arguments, for a reader."""
    constants: Sequence[Any]


@dataclass(slots=True)
class _Values:
    """The values of a level in one trip."""

    given: Given
    tap: Callable[[int], Any]
    around: _Values | None = None
    row: int = 0
    tensors: dict[Ref, Tensor] = field(default_factory=dict)

    def array(self, ref: Ref) -> Any:
        if isinstance(ref, Tap):
            return self.tap(ref.index)
        if isinstance(ref, Argument):
            return self.given.arguments[ref.index]
        if isinstance(ref, Constant):
            return np.asarray(self.given.constants[ref.index])
        if isinstance(ref, Opaque):
            return ref.kind
        assert self.around is not None, "only bodies read what is around them"
        array = self.around.array(ref.ref)
        return array if isinstance(ref, Outer) or isinstance(array, str) else array[self.row, ...]

    def tensor(self, ref: Ref) -> Tensor:
        """The same object for each operator that reads the value: it is looked at once."""
        if isinstance(ref, Outer) and self.around is not None:
            return self.around.tensor(ref.ref)
        if isinstance(ref, Argument):
            return self.given.tensors[ref.index]
        known = self.tensors.get(ref)
        if known is None:
            known = self.tensors[ref] = host_tensor(self.array(ref), stays=not isinstance(ref, Row))
        return known


class Emitter:
    """Emits one call of a function."""

    def __init__(self, given: Given, run: GraphRun, operators: Mapping[str, NamedOperator]) -> None:
        """`operators`, by name, have what is known of them beside the jaxpr."""
        self._given = given
        self._run = run
        self._operators = operators

    def emit(self, level: Level, taps: Sequence[Any]) -> None:
        self._level(level, _Values(self._given, lambda index: taps[index]))

    def _level(self, level: Level, values: _Values, run: GraphRun | None = None) -> None:
        run = run or self._run
        for entry in level.entries:
            if run.is_over:
                return
            if isinstance(entry, Equation):
                operator = self._operators[entry.operator.op_name]
                if operator.skip:
                    run.skip(operator)
                else:
                    run.emit(operator, _live(entry.inputs, values), _live(entry.outputs, values))
            elif isinstance(entry, Scan):
                for row in reversed(range(entry.length)) if entry.reverse else range(entry.length):
                    self._level(entry.body, self._inside(values, entry.taps, row), run)
            elif isinstance(entry, While):
                self._while(entry, values, run)
            elif isinstance(entry, Branches):
                # As `lax.switch` does with an index that names no branch.
                which = int(np.clip(int(values.array(entry.index)), 0, len(entry.levels) - 1))
                inner = _Values(self._given, partial(_tap_of, values, entry.taps[which]), values)
                self._level(entry.levels[which], inner, run)
            else:
                self._shards(entry, values, run)

    def _while(self, entry: While, values: _Values, run: GraphRun) -> None:
        trips = int(values.tap(entry.trips))
        for row in range(min(trips, entry.capacity)):
            self._level(entry.condition, self._inside(values, entry.condition_taps, row), run)
            self._level(entry.body, self._inside(values, entry.body_taps, row), run)
        missing = max(0, trips - entry.capacity)  # there was no room for them
        run.count_skipped({"not observed": missing * sum(1 for level in entry.inner for _ in level.each())})
        self._level(entry.last, values, run)

    def _shards(self, entry: Shards, values: _Values, run: GraphRun) -> None:
        for row in range(entry.count):
            self._level(entry.body, self._inside(values, entry.taps, row), run.on_device(row))

    def _inside(self, values: _Values, taps: Sequence[int], row: int) -> _Values:
        return _Values(self._given, lambda index: values.tap(taps[index])[row, ...], values, row)


def _tap_of(around: _Values, taps: Sequence[int], index: int) -> Any:
    return around.tap(taps[index])


def _live(slots: Sequence[Slot], values: _Values) -> list[LiveTensor]:
    return [live_tensor(slot.slot, "", values.tensor(slot.ref), slot.source) for slot in slots]
