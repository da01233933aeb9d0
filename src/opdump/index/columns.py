"""The stored columns of one batch of an index. Records of operators and tensors are created on demand."""

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
    """What a batch ran, except for the arguments of its operators, which may change from step to step.

    Batches that ran the same share one program object.
    """

    directories: Sequence[tuple[str, int]]
    """The network and the graph of each operator."""
    slots: Sequence[tuple[int, IO, int]]
    """For each tensor, the index of its operator, and which of its inputs or outputs it is."""

    @cached_property
    def tensors_by_directory(self) -> Mapping[tuple[str, int], NDArray[np.intp]]:
        """The indices of the tensors of each network and graph."""
        found: dict[tuple[str, int], list[int]] = {}
        for number, (place, _, _) in enumerate(self.slots):
            found.setdefault(self.directories[place], []).append(number)
        return {directory: np.array(numbers, np.intp) for directory, numbers in found.items()}

    @cached_property
    def tensors_by_operator(self) -> Mapping[int, Sequence[int]]:
        """The indices of the tensors of each operator that has some, by operator index."""
        found: dict[int, list[int]] = {}
        for number, (place, _, _) in enumerate(self.slots):
            found.setdefault(place, []).append(number)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """What a batch ran: the rows of its operators, and for each tensor the index of its operator and its signature."""

    operators: Sequence[int]
    tensors: Sequence[tuple[int, int]]
    program: Program
    arguments: Sequence[Mapping[str, Any]]
    """The arguments of each operator."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchColumns:
    """A batch in which every tensor with statistics has a summary."""

    pattern: Pattern
    step: int
    timestamps: NDArray[np.int64]
    """The time stamp of each operator."""
    summaries: NDArray[np.float64]
    """The summary of each tensor, shape (n, 11); the count of a tensor without one is NaN."""
    counted: Mapping[SkipReason, int]
    """Number of operators without data that an earlier batch lists, by reason."""
    files: Mapping[int, str]
    """By tensor index, the file of a tensor that has one, as stored in the index."""
    statistics: Mapping[int, Mapping[str, StatisticValue]]
    """By tensor index, statistics that are not in the summary."""
    make_op: Callable[[int, int, int, Mapping[str, Any]], OpRecord]
    """Creates an operator from its row, time, step and arguments."""
    make_tensor: Callable[
        [OpRecord, int, Summary | None, Mapping[str, StatisticValue] | None, str | None], TensorRecord
    ]
    """Creates a tensor of an operator from its signature, summary, other statistics and file."""

    @property
    def with_summary(self) -> NDArray[np.bool_]:
        """Whether each tensor has a summary, shape (n,)."""
        return ~np.isnan(self.summaries[:, 0])

    def records(self) -> tuple[list[OpRecord], list[TensorRecord]]:
        """Return all operators and tensors, in the order in which they were written."""
        ops = [*map(self.op, range(len(self.pattern.operators)))]
        rows = map(Summary._make, self.summaries.tolist())
        tensors = [
            self._tensor(ops[place], number, signature, summary)
            for number, ((place, signature), summary) in enumerate(zip(self.pattern.tensors, rows, strict=True))
        ]
        return ops, tensors

    def op(self, place: int) -> OpRecord:
        """Return one operator, by index."""
        pattern = self.pattern
        return self.make_op(pattern.operators[place], int(self.timestamps[place]), self.step, pattern.arguments[place])

    def operator(self, place: int) -> tuple[OpRecord, list[TensorRecord]]:
        """Return one operator, by index, and its tensors in the order in which they were written. No other records are created."""
        op = self.op(place)
        return op, [self.tensor(op, number) for number in self.pattern.program.tensors_by_operator.get(place, ())]

    def tensor(self, op: OpRecord, number: int) -> TensorRecord:
        """Return one tensor of this operator, by tensor index."""
        return self._tensor(op, number, self.pattern.tensors[number][1], Summary._make(self.summaries[number].tolist()))

    def _tensor(self, op: OpRecord, number: int, signature: int, summary: Summary) -> TensorRecord:
        has_none = summary.count != summary.count
        return self.make_tensor(
            op, signature, None if has_none else summary, self.statistics.get(number), self.files.get(number)
        )


_Facts = TypeVar("_Facts")


class FactsByProgram(Generic[_Facts]):
    """Caches the result of `make` for a step in columns, for later steps that ran the same program with summaries for the same tensors."""

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
