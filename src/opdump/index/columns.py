"""A batch of an index as it is filed, in columns: records of operators and tensors are made of it when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from opdump.kernels import Summary
from opdump.records import IO, OpRecord, SkipReason, StatisticValue, TensorRecord


@dataclass(frozen=True, eq=False)
class Program:
    """What a batch ran, but for the arguments of its operators, which may change from step to step.

    A batch that ran the same as another has the very same program.
    """

    directories: Sequence[tuple[str, int]]
    """The network and the graph of each operator."""
    slots: Sequence[tuple[int, IO, int]]
    """Of each tensor the place of its operator, and which of its inputs or outputs it is."""

    @cached_property
    def tensors_by_directory(self) -> Mapping[tuple[str, int], NDArray[np.intp]]:
        """The places of the tensors of each network and graph."""
        found: dict[tuple[str, int], list[int]] = {}
        for number, (place, _, _) in enumerate(self.slots):
            found.setdefault(self.directories[place], []).append(number)
        return {directory: np.array(numbers, np.intp) for directory, numbers in found.items()}

    @cached_property
    def tensors_by_operator(self) -> Mapping[int, Sequence[int]]:
        """The places of the tensors of each operator that has some, by its place."""
        found: dict[int, list[int]] = {}
        for number, (place, _, _) in enumerate(self.slots):
            found.setdefault(place, []).append(number)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """What a batch ran: the rows of its operators, and of each tensor the place of its operator and its signature."""

    operators: Sequence[int]
    tensors: Sequence[tuple[int, int]]
    program: Program
    arguments: Sequence[Mapping[str, Any]]
    """Of each operator."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchColumns:
    """A batch whose tensors have summaries, but for some that have no statistics at all."""

    pattern: Pattern
    step: int
    timestamps: NDArray[np.int64]
    """Of each operator."""
    summaries: NDArray[np.float64]
    """Of each tensor; NaN for the count of one that has none."""
    counted: Mapping[SkipReason, int]
    """How many operators without data ran that an earlier batch lists, by reason."""
    files: Mapping[int, str]
    """By their places, those of the tensors that have one, as the index has them."""
    statistics: Mapping[int, Mapping[str, StatisticValue]]
    """By their places, what summaries of the tensors do not give, of those that have such."""
    make_op: Callable[[int, int, int, Mapping[str, Any]], OpRecord]
    """An operator, by its row, its time, its step and its arguments."""
    make_tensor: Callable[
        [OpRecord, int, Summary | None, Mapping[str, StatisticValue] | None, str | None], TensorRecord
    ]
    """A tensor of an operator, by its signature, its summary, its other statistics and its file."""

    @property
    def with_summary(self) -> NDArray[np.bool_]:
        """Whether each tensor has a summary."""
        return ~np.isnan(self.summaries[:, 0])

    def records(self) -> tuple[list[OpRecord], list[TensorRecord]]:
        """All operators and tensors, in the order in which they were filed."""
        ops = [*map(self.op, range(len(self.pattern.operators)))]
        rows = map(Summary._make, self.summaries.tolist())
        tensors = [
            self._tensor(ops[place], number, signature, summary)
            for number, ((place, signature), summary) in enumerate(zip(self.pattern.tensors, rows, strict=True))
        ]
        return ops, tensors

    def op(self, place: int) -> OpRecord:
        """One operator by its place."""
        pattern = self.pattern
        return self.make_op(pattern.operators[place], int(self.timestamps[place]), self.step, pattern.arguments[place])

    def operator(self, place: int) -> tuple[OpRecord, list[TensorRecord]]:
        """One operator by its place, and its tensors, in the order in which they were filed: no other record is made."""
        op = self.op(place)
        return op, [self.tensor(op, number) for number in self.pattern.program.tensors_by_operator.get(place, ())]

    def tensor(self, op: OpRecord, number: int) -> TensorRecord:
        """One tensor by its place, which is of this operator."""
        return self._tensor(op, number, self.pattern.tensors[number][1], Summary._make(self.summaries[number].tolist()))

    def _tensor(self, op: OpRecord, number: int, signature: int, summary: Summary) -> TensorRecord:
        has_none = summary.count != summary.count
        return self.make_tensor(
            op, signature, None if has_none else summary, self.statistics.get(number), self.files.get(number)
        )


_Facts = TypeVar("_Facts")


class FactsByProgram(Generic[_Facts]):
    """What `make` gives of a step in columns, kept for the next steps that ran the same and have summaries of the same tensors."""

    _MOST_KNOWN = 16  # a regular training has a few programs

    def __init__(self, make: Callable[[BatchColumns], _Facts]) -> None:
        self._make = make
        self._known: dict[Program, tuple[NDArray[np.bool_], _Facts]] = {}

    def of(self, columns: BatchColumns) -> _Facts:
        program, with_summary = columns.pattern.program, columns.with_summary
        known = self._known.get(program)
        if known is None or not np.array_equal(known[0], with_summary):
            if len(self._known) >= self._MOST_KNOWN:
                self._known.clear()
            known = self._known[program] = with_summary, self._make(columns)
        return known[1]
