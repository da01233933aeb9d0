"""What a step ran, in columns: what repeats is told once, and what differs from run to run stands in arrays.

    pattern = sequence.pattern(facts)                   # operators that run one after the other, on these tensors
    run = BlockRun(pattern, step=3, timestamps=range(10, 20), rows=rows)
    columns = StepColumns([run, Singles(ops, tensors)], summaries)
    columns.ops, columns.tensors                        # sequences of records, made when they are asked for

A training runs the same operators on the same tensors in each step. Then a step has the patterns that the step before had, which are the
very same objects, and no record is made of any of its operators and tensors.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain, count
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from opdump.kernels import SUMMARY_FIELDS, Summary
from opdump.records import IO, FiledTensor, Memory, OpRecord, SkipReason, StatisticValue, TensorRecord
from opdump.statistics import Extremes, SummaryStatistics

NO_SUMMARY: Final = (math.nan,) + (0.0,) * 10
"""The row of a tensor without a summary: a summary's count is a number."""

VALUE: Final = "Parameter"
"""op_type of what no operator made: it is filed, and nothing was executed."""
_NO_EXTREMES: Final[Mapping[int, Extremes]] = MappingProxyType({})
OtherArguments: TypeAlias = Mapping[int, Mapping[str, Any]]
"""By the places of operators, the arguments of those that were given others than the pattern says: a rate that changes from step to step."""
_NO_OTHERS: Final[Mapping[int, Mapping[str, StatisticValue]]] = MappingProxyType({})
_NOT_FINITE: Final = slice(SUMMARY_FIELDS.index("nan"), SUMMARY_FIELDS.index("negative_inf") + 1)

BlockTensor = tuple[int, IO, int, str, str, int]
"""A slot of an operator of a block: the place of the operator, io, slot, argument, source, and the place of the tensor."""


class TensorFacts(NamedTuple):
    """What is known of a tensor but its numbers."""

    dtype: str
    shape: tuple[int, ...]
    data_size: int
    skip: SkipReason = ""
    memory: Memory | None = None


@dataclass(slots=True, eq=False)
class OperatorSequence:
    """Operators that run one after the other at one place of a step, and the slots of their tensors."""

    ops: Sequence[OpRecord]
    """All that their records say but time stamp and step, and arguments that change; none of them was left out."""
    slots: Sequence[BlockTensor]
    _last: BlockPattern | None = field(default=None, init=False)

    def pattern(self, facts: Sequence[TensorFacts]) -> BlockPattern:
        """The sequence on tensors with these facts: the same object where they are those of the last call."""
        if self._last is None or (self._last.facts is not facts and self._last.facts != facts):
            self._last = BlockPattern(self, facts)
        return self._last


@dataclass(frozen=True, eq=False)
class BlockPattern:
    """All of a run of a block but when it ran and what the summaries of its tensors are. Compared by identity."""

    sequence: OperatorSequence
    facts: Sequence[TensorFacts]
    """Of each tensor."""

    @cached_property
    def tensor_places(self) -> NDArray[np.intp]:
        """Of each slot the place of its tensor."""
        return np.array([slot[-1] for slot in self.sequence.slots], np.intp)

    @cached_property
    def names(self) -> Mapping[str, str]:
        """The operators and their types."""
        return {op.op_name: op.op_type for op in self.sequence.ops}

    @cached_property
    def slots_of(self) -> Mapping[int, Sequence[int]]:
        """The places of the slots of each operator that has some."""
        found: dict[int, list[int]] = {}
        for place, slot in enumerate(self.sequence.slots):
            found.setdefault(slot[0], []).append(place)
        return found

    @cached_property
    def op_types(self) -> Counter[str]:
        """How many operators there are of each type."""
        return Counter(op.op_type for op in self.sequence.ops)

    @cached_property
    def left_out(self) -> Counter[SkipReason]:
        """Tensors without data by the reason."""
        skips = (self.facts[slot[-1]].skip for slot in self.sequence.slots)
        return Counter(skip for skip in skips if skip)


def ran(
    op: OpRecord,
    timestamp: int,
    step: int,
    arguments: Mapping[str, Any],
    rank_id: int | None = None,
    later: int = 0,
) -> OpRecord:
    """The operator at another time, given these arguments."""
    return OpRecord(
        op.op_type,
        op.op_name,
        timestamp,
        step,
        op.net_name,
        op.graph_id,
        op.rank_id if rank_id is None else rank_id,
        op.device_id,
        op.task_id,
        op.stream_id,
        op.order + later,
        op.occurrence,
        op.phase,
        op.kernel,
        op.forward_op,
        op.stack,
        arguments,
        op.skip,
    )


@dataclass(frozen=True, slots=True, eq=False)
class BlockRun:
    """One run of a block."""

    pattern: BlockPattern
    step: int
    timestamps: Sequence[int]
    """Of each operator."""
    rows: NDArray[np.intp]
    """Of each slot the row of its summary, among those that a `StepColumns` is given."""
    rank_id: int | None = None
    """None where the operators say it."""
    files: Sequence[str | None] | None = None
    """Of each slot where its elements are; None where none were filed."""
    later: int = 0
    """By how much the operators run later in the step than they say."""
    arguments: OtherArguments = field(default_factory=dict)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for two runs that differ in step, time stamps, summaries and arguments alone."""
        return self.pattern, self.rank_id, self.later

    def op(self, place: int) -> OpRecord:
        """The record of an operator."""
        op = self.pattern.sequence.ops[place]
        arguments = self.arguments.get(place, op.arguments)
        return ran(op, self.timestamps[place], self.step, arguments, self.rank_id, self.later)

    def records(self) -> list[OpRecord]:
        """The records of all operators."""
        return [*map(self.op, range(len(self.timestamps)))]

    def tensor(
        self,
        place: int,
        op: OpRecord,
        summary: Summary | None,
        extremes: Extremes | None = None,
        others: Mapping[str, StatisticValue] | None = None,
    ) -> TensorRecord:
        """The record of what is in a slot."""
        _, io, slot, argument, source, tensor = self.pattern.sequence.slots[place]
        dtype, shape, data_size, skip, memory = self.pattern.facts[tensor]
        return TensorRecord(
            op=op,
            io=io,
            slot=slot,
            dtype=dtype,
            shape=shape,
            argument=argument,
            source=source,
            data_size=data_size,
            skip=skip,
            statistics={} if summary is None else SummaryStatistics(summary, others, extremes),
            memory=memory,
        )


_Known = TypeVar("_Known")
Filed_co = TypeVar("Filed_co", bound=FiledTensor, covariant=True)


@dataclass(frozen=True, eq=False)
class Singles(Generic[Filed_co]):
    """Operators and tensors that were recorded one by one. Tensors may belong to operators that are elsewhere."""

    ops: Sequence[OpRecord]
    tensors: Sequence[Filed_co]


Part: TypeAlias = "BlockRun | Singles[FiledTensor]"


class StepColumns:
    """The parts of a step, in the order in which they were recorded."""

    def __init__(
        self,
        parts: Sequence[Part],
        summaries: NDArray[np.float64],
        extremes: Mapping[int, Extremes] = _NO_EXTREMES,
        others: Mapping[int, Mapping[str, StatisticValue]] = _NO_OTHERS,
    ) -> None:
        """`summaries` are those of the runs; its last row is NO_SUMMARY, which the row -1 means. All parts are of one step.

        `extremes` are, by rows of these, max and min by the rules of a device; `others` what else is known, by such rows too.
        """
        self.parts = parts
        self.op_starts: Sequence[int] = [0, *accumulate(len(_ops_of(part)) for part in parts)]
        """Of each part the place of its first operator among all; behind them, how many there are."""
        self.tensor_starts: Sequence[int] = [0, *accumulate(len(_tensors_of(part)) for part in parts)]
        rows: list[NDArray[np.intp]] = []
        singles: list[tuple[int, NDArray[np.float64]]] = []
        further: dict[int, Mapping[str, StatisticValue]] = {}
        found: dict[int, Extremes] = {}
        for part, start in zip(parts, self.tensor_starts, strict=False):
            if isinstance(part, BlockRun):
                rows.append(part.rows)
                _by_place(part.rows, start, extremes, found)
                _by_place(part.rows, start, others, further)
                continue
            found.update((start + place, each) for place, each in extremes_of(part.tensors).items())
            rows.append(np.full(len(part.tensors), -1, np.intp))
            numbers, _, of_part = statistics_of(part.tensors)
            further.update({start + place: statistics for place, statistics in of_part.items()})
            if numbers is not None:
                singles.append((start, numbers))
        self.summaries: NDArray[np.float64] = summaries[np.concatenate(rows)] if rows else summaries[:0]
        """A row for each tensor, NO_SUMMARY where it has none."""
        for start, numbers in singles:
            self.summaries[start : start + len(numbers)] = numbers
        self.bare: Sequence[int] = np.flatnonzero(np.isnan(self.summaries[:, 0])).tolist()
        """The places of tensors without a summary."""
        self.others: Mapping[int, Mapping[str, StatisticValue]] = further
        """By a tensor's place, what its summary does not give; or all statistics of one without a summary."""
        self.extremes: Mapping[int, Extremes] = found
        """By a tensor's place, max and min by the rules of a device, where a layout needs them and they are not those of the summary."""

    @property
    def ops(self) -> Sequence[OpRecord]:
        """All operators: `columns_of` knows these again."""
        return _Ops(self)

    @property
    def tensors(self) -> Sequence[FiledTensor]:
        """All tensors, likewise."""
        return _Tensors(self)

    @property
    def timestamps(self) -> list[int]:
        """Of each operator."""
        found: list[int] = []
        for part in self.parts:
            found += part.timestamps if isinstance(part, BlockRun) else [op.timestamp for op in part.ops]
        return found

    @property
    def singles(self) -> Iterator[tuple[OpRecord, int]]:
        """The operators that were recorded one by one, and their places."""
        for part, start in zip(self.parts, self.op_starts, strict=False):
            if isinstance(part, Singles):
                yield from zip(part.ops, count(start))

    @property
    def other_arguments(self) -> dict[int, Mapping[str, Any]]:
        """Of the operators of blocks that were given others than their pattern says, by their places."""
        return {
            start + place: arguments
            for part, start in zip(self.parts, self.op_starts, strict=False)
            if isinstance(part, BlockRun)
            for place, arguments in part.arguments.items()
        }

    def op(self, place: int) -> OpRecord:
        """The record of one operator."""
        part, within = _find(self.op_starts, place)
        found = self.parts[part]
        return found.op(within) if isinstance(found, BlockRun) else found.ops[within]

    def bare_tensors(self) -> Iterator[FiledTensor | TensorFacts]:
        """The tensors without a summary: those of blocks have no other statistics either, and are told by their facts."""
        for place in self.bare:
            part, within = _find(self.tensor_starts, place)
            found = self.parts[part]
            if isinstance(found, Singles):
                yield found.tensors[within]
            else:
                yield found.pattern.facts[found.pattern.sequence.slots[within][-1]]

    def op_names(self, begin: int, end: int | None = None) -> Iterator[str]:
        """The names of operators by their places among all, but for values that no operator made."""
        for part, start in zip(self.parts, self.op_starts, strict=False):
            ops = part.pattern.sequence.ops if isinstance(part, BlockRun) else part.ops
            stop = len(ops) if end is None else max(0, end - start)
            for op in ops[max(0, begin - start) : stop]:
                if op.op_type != VALUE:
                    yield op.op_name

    def executions(self, tensors: Iterable[int]) -> Iterator[tuple[int, OpRecord, Sequence[FiledTensor]]]:
        """The operators of these tensors in order, each with its place and all of its tensors: no other record is made."""
        places = {id(op): place for op, place in self.singles}
        of_single: dict[int, list[FiledTensor]] = {}
        for part in self.parts:
            for tensor in part.tensors if isinstance(part, Singles) else ():
                of_single.setdefault(places.get(id(tensor.op), -1), []).append(tensor)
        owners: set[int] = set()
        for tensor_place in tensors:
            number, within = _find(self.tensor_starts, tensor_place)
            found = self.parts[number]
            if isinstance(found, Singles):
                owners.add(places.get(id(found.tensors[within].op), -1))
            else:
                owners.add(self.op_starts[number] + found.pattern.sequence.slots[within][0])
        for place in sorted(owners - {-1}):  # -1: an operator that was filed before
            number, within = _find(self.op_starts, place)
            found, op = self.parts[number], self.op(place)
            if isinstance(found, Singles):
                yield place, op, of_single[place]
                continue
            start = self.tensor_starts[number]
            rows, extremes, others = self.summaries[start:], self.extremes, self.others
            slots = found.pattern.slots_of[within]
            yield (
                place,
                op,
                [
                    found.tensor(
                        slot, op, _summary(rows[slot].tolist()), extremes.get(start + slot), others.get(start + slot)
                    )
                    for slot in slots
                ],
            )

    @property
    def op_types(self) -> set[str]:
        """The types of all operators."""
        found: set[str] = set()
        for part in self.parts:
            found.update(part.pattern.op_types if isinstance(part, BlockRun) else [op.op_type for op in part.ops])
        return found

    @property
    def not_finite(self) -> Sequence[int]:
        """The places of tensors whose summary counts NaN or infinities."""
        found: Sequence[int] = np.flatnonzero(self.summaries[:, _NOT_FINITE].any(axis=1)).tolist()
        return found

    @cached_property
    def records(self) -> tuple[Sequence[OpRecord], Sequence[FiledTensor]]:
        """All operators, and all tensors, of which each knows its operator."""
        ops: list[OpRecord] = []
        tensors: list[FiledTensor] = []
        for part, start in zip(self.parts, self.tensor_starts, strict=False):
            if isinstance(part, Singles):
                ops += part.ops
                tensors += part.tensors
                continue
            own = part.records()
            ops += own
            numbers = self.summaries[start : start + len(part.rows)].tolist()
            for place, (slot, row) in enumerate(zip(part.pattern.sequence.slots, numbers, strict=True)):
                extremes, others = self.extremes.get(start + place), self.others.get(start + place)
                tensors.append(part.tensor(place, own[slot[0]], _summary(row), extremes, others))
        return ops, tensors


class _Ops(Sequence[OpRecord]):
    """The operators of a step. One of them is made alone, all are made once."""

    def __init__(self, columns: StepColumns) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return self.columns.op_starts[-1]

    def __iter__(self) -> Iterator[OpRecord]:
        return iter(self.columns.records[0])

    @overload
    def __getitem__(self, place: int) -> OpRecord: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[OpRecord]: ...
    def __getitem__(self, place: int | slice) -> OpRecord | Sequence[OpRecord]:
        if isinstance(place, slice) or "records" in vars(self.columns):
            return self.columns.records[0][place]
        return self.columns.op(range(len(self))[place])


class _Tensors(Sequence[FiledTensor]):
    """The tensors of a step, which are made once."""

    def __init__(self, columns: StepColumns) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return self.columns.tensor_starts[-1]

    @overload
    def __getitem__(self, place: int) -> FiledTensor: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[FiledTensor]: ...
    def __getitem__(self, place: int | slice) -> FiledTensor | Sequence[FiledTensor]:
        return self.columns.records[1][place]

    def __iter__(self) -> Iterator[FiledTensor]:
        return iter(self.columns.records[1])


def columns_of(ops: Sequence[OpRecord], tensors: Sequence[object]) -> StepColumns | None:
    """The columns that these are all operators and all tensors of; None where they are others."""
    if isinstance(ops, _Ops) and isinstance(tensors, _Tensors) and ops.columns is tensors.columns:
        return ops.columns
    return None


def statistics_of(
    tensors: Iterable[FiledTensor],
) -> tuple[NDArray[np.float64] | None, list[int], dict[int, Mapping[str, StatisticValue]]]:
    """Summaries, the places of tensors without one, and what summaries do not give, as `StepColumns` has them.

    Instead of summaries None where no tensor has one.
    """
    summaries: list[tuple[float, ...]] = []
    bare: list[int] = []
    others: dict[int, Mapping[str, StatisticValue]] = {}
    for place, statistics in enumerate([tensor.statistics for tensor in tensors]):
        if type(statistics) is SummaryStatistics:  # isinstance asks the abstract base class: slow
            summaries.append(statistics.summary)
            if statistics.others:
                others[place] = statistics.others
        else:
            summaries.append(NO_SUMMARY)
            bare.append(place)
            if statistics:
                others[place] = statistics
    if len(bare) == len(summaries):
        return None, bare, others
    width = len(NO_SUMMARY)
    # numpy takes four times as long from a list of tuples.
    numbers = np.fromiter(chain.from_iterable(summaries), np.float64, count=len(summaries) * width)
    return numbers.reshape(-1, width), bare, others


def extremes_of(tensors: Iterable[FiledTensor]) -> dict[int, Extremes]:
    """Max and min by the rules of a device of those that have them beside a summary, by their places."""
    return {
        place: statistics.extremes
        for place, statistics in enumerate([tensor.statistics for tensor in tensors])
        if type(statistics) is SummaryStatistics and statistics.extremes is not None
    }


def _ops_of(part: Part) -> Sequence[object]:
    return part.timestamps if isinstance(part, BlockRun) else part.ops


def _tensors_of(part: Part) -> Sequence[object]:
    return part.pattern.sequence.slots if isinstance(part, BlockRun) else part.tensors


def _by_place(rows: NDArray[np.intp], start: int, by_row: Mapping[int, _Known], found: dict[int, _Known]) -> None:
    """What is known of some rows, into `found` by places, of which the first is `start`."""
    if by_row:
        known = map(by_row.get, rows.tolist())
        found.update((start + place, each) for place, each in enumerate(known) if each is not None)


def _summary(row: Sequence[float]) -> Summary | None:
    return None if math.isnan(row[0]) else Summary._make(row)


def _find(starts: Sequence[int], place: int) -> tuple[int, int]:
    """The part with a place among all, and the place in it."""
    part = bisect_right(starts, place) - 1
    return part, place - starts[part]
