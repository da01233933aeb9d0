"""The operators of a step in columns: repeated facts are stored once, and what differs from run to run is in arrays.

    pattern = sequence.pattern(facts)                   # operators that run one after the other, on these tensors
    run = BlockRun(pattern, step=3, timestamps=range(10, 20), rows=rows)
    columns = StepColumns([run, Singles(ops, tensors)], summaries)
    columns.ops, columns.tensors                        # sequences of records, created when they are read

A training runs the same operators on the same tensors in each step. Such a step has the same pattern objects as the step before, and no records are
created for its operators and tensors.
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
"""The row of a tensor without a summary; the first field of a summary, its count, is never NaN."""

VALUE: Final = "Parameter"
"""op_type of a value that no operator produced: it is written, but does not count as executed."""
_NO_EXTREMES: Final[Mapping[int, Extremes]] = MappingProxyType({})
OtherArguments: TypeAlias = Mapping[int, Mapping[str, Any]]
"""By the index of an operator, arguments that differ from those in the pattern, such as a learning rate that changes with each step."""
_NO_OTHERS: Final[Mapping[int, Mapping[str, StatisticValue]]] = MappingProxyType({})
_NOT_FINITE: Final = slice(SUMMARY_FIELDS.index("nan"), SUMMARY_FIELDS.index("negative_inf") + 1)

BlockTensor = tuple[int, IO, int, str, str, int]
"""A slot of an operator in a block: index of the operator, io, slot, argument, source, and index of the tensor."""


class TensorFacts(NamedTuple):
    """The facts about a tensor, without its statistics."""

    dtype: str
    shape: tuple[int, ...]
    data_size: int
    skip: SkipReason = ""
    memory: Memory | None = None


@dataclass(slots=True, eq=False)
class OperatorSequence:
    """Operators that run one after the other at one point of a step, and the slots of their tensors."""

    ops: Sequence[OpRecord]
    """Records without valid time stamp, step, and changing arguments. None of the operators was left out."""
    slots: Sequence[BlockTensor]
    _last: BlockPattern | None = field(default=None, init=False)

    def pattern(self, facts: Sequence[TensorFacts]) -> BlockPattern:
        """Return the sequence on tensors with these facts: the same object if the facts equal those of the last call."""
        if self._last is None or (self._last.facts is not facts and self._last.facts != facts):
            self._last = BlockPattern(self, facts)
        return self._last


@dataclass(frozen=True, eq=False)
class BlockPattern:
    """A run of a block without its times and the summaries of its tensors. Compared by identity."""

    sequence: OperatorSequence
    facts: Sequence[TensorFacts]
    """The facts of each tensor."""

    @cached_property
    def tensor_places(self) -> NDArray[np.intp]:
        """The index of the tensor in each slot."""
        return np.array([slot[-1] for slot in self.sequence.slots], np.intp)

    @cached_property
    def names(self) -> Mapping[str, str]:
        """The operators and their types."""
        return {op.op_name: op.op_type for op in self.sequence.ops}

    @cached_property
    def slots_of(self) -> Mapping[int, Sequence[int]]:
        """The indices of the slots of each operator that has some."""
        found: dict[int, list[int]] = {}
        for place, slot in enumerate(self.sequence.slots):
            found.setdefault(slot[0], []).append(place)
        return found

    @cached_property
    def op_types(self) -> Counter[str]:
        """Number of operators of each type."""
        return Counter(op.op_type for op in self.sequence.ops)

    @cached_property
    def left_out(self) -> Counter[SkipReason]:
        """Number of tensors without data, by reason."""
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
    """Return the record of an operator at another time, with these arguments."""
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
    """The time stamp of each operator."""
    rows: NDArray[np.intp]
    """The row of the summary of each slot, in the array that a `StepColumns` receives."""
    rank_id: int | None = None
    """None if the rank is that of the operators."""
    files: Sequence[str | None] | None = None
    """The location of the elements of each slot; None if none were written."""
    later: int = 0
    """Offset added to each operator's recorded order."""
    arguments: OtherArguments = field(default_factory=dict)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for two runs that differ only in step, time stamps, summaries and arguments."""
        return self.pattern, self.rank_id, self.later

    def op(self, place: int) -> OpRecord:
        """Return the record of one operator."""
        op = self.pattern.sequence.ops[place]
        arguments = self.arguments.get(place, op.arguments)
        return ran(op, self.timestamps[place], self.step, arguments, self.rank_id, self.later)

    def records(self) -> list[OpRecord]:
        """Return the records of all operators."""
        return [*map(self.op, range(len(self.timestamps)))]

    def tensor(
        self,
        place: int,
        op: OpRecord,
        summary: Summary | None,
        extremes: Extremes | None = None,
        others: Mapping[str, StatisticValue] | None = None,
    ) -> TensorRecord:
        """Return the record of the tensor in a slot."""
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
    """Operators and tensors that were recorded one by one. The operators of the tensors may be elsewhere."""

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
        """`summaries` are those of the runs, shape (n, 11); the last row is NO_SUMMARY, to which row -1 refers. All parts belong to one step.

        By row number, `extremes` are max and min by the rules of a device, and `others` the other statistics.
        """
        self.parts = parts
        self.op_starts: Sequence[int] = [0, *accumulate(len(_ops_of(part)) for part in parts)]
        """The index of the first operator of each part, and at the end the number of operators."""
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
        """A row for each tensor; NO_SUMMARY for a tensor without one."""
        for start, numbers in singles:
            self.summaries[start : start + len(numbers)] = numbers
        self.bare: Sequence[int] = np.flatnonzero(np.isnan(self.summaries[:, 0])).tolist()
        """The indices of tensors without a summary."""
        self.others: Mapping[int, Mapping[str, StatisticValue]] = further
        """By tensor index, statistics that are not in the summary, or all statistics of a tensor without a summary."""
        self.extremes: Mapping[int, Extremes] = found
        """By tensor index, max and min by the rules of a device, if a layout needs them and they differ from those of the summary."""

    @property
    def ops(self) -> Sequence[OpRecord]:
        """All operators, in a form that `columns_of` recognises."""
        return _Ops(self)

    @property
    def tensors(self) -> Sequence[FiledTensor]:
        """All tensors, in a form that `columns_of` recognises."""
        return _Tensors(self)

    @property
    def timestamps(self) -> list[int]:
        """The time stamp of each operator."""
        found: list[int] = []
        for part in self.parts:
            found += part.timestamps if isinstance(part, BlockRun) else [op.timestamp for op in part.ops]
        return found

    @property
    def singles(self) -> Iterator[tuple[OpRecord, int]]:
        """The operators that were recorded one by one, and their indices."""
        for part, start in zip(self.parts, self.op_starts, strict=False):
            if isinstance(part, Singles):
                yield from zip(part.ops, count(start))

    @property
    def other_arguments(self) -> dict[int, Mapping[str, Any]]:
        """By operator index, arguments of operators of blocks that differ from those in the pattern."""
        return {
            start + place: arguments
            for part, start in zip(self.parts, self.op_starts, strict=False)
            if isinstance(part, BlockRun)
            for place, arguments in part.arguments.items()
        }

    def op(self, place: int) -> OpRecord:
        """Return the record of one operator."""
        part, within = _find(self.op_starts, place)
        found = self.parts[part]
        return found.op(within) if isinstance(found, BlockRun) else found.ops[within]

    def bare_tensors(self) -> Iterator[FiledTensor | TensorFacts]:
        """Yield the tensors without a summary. Those of blocks have no other statistics either, and are represented by their facts."""
        for place in self.bare:
            part, within = _find(self.tensor_starts, place)
            found = self.parts[part]
            if isinstance(found, Singles):
                yield found.tensors[within]
            else:
                yield found.pattern.facts[found.pattern.sequence.slots[within][-1]]

    def op_names(self, begin: int, end: int | None = None) -> Iterator[str]:
        """Yield the names of the operators in a range of indices, without values that no operator produced."""
        for part, start in zip(self.parts, self.op_starts, strict=False):
            ops = part.pattern.sequence.ops if isinstance(part, BlockRun) else part.ops
            stop = len(ops) if end is None else max(0, end - start)
            for op in ops[max(0, begin - start) : stop]:
                if op.op_type != VALUE:
                    yield op.op_name

    def executions(self, tensors: Iterable[int]) -> Iterator[tuple[int, OpRecord, Sequence[FiledTensor]]]:
        """Yield the operators of these tensors in order, each with its index and all of its tensors. No other records are created."""
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
        for place in sorted(owners - {-1}):  # -1: an operator that was written before
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
        """The indices of tensors whose summary counts NaN or infinities."""
        found: Sequence[int] = np.flatnonzero(self.summaries[:, _NOT_FINITE].any(axis=1)).tolist()
        return found

    @cached_property
    def records(self) -> tuple[Sequence[OpRecord], Sequence[FiledTensor]]:
        """All operators, and all tensors with references to their operators."""
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
    """The operators of a step. A single one is created by itself; all of them are created once."""

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
    """The tensors of a step. All of them are created once."""

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
    """Return the columns of which these are all operators and all tensors, or None if they are not from one `StepColumns`."""
    if isinstance(ops, _Ops) and isinstance(tensors, _Tensors) and ops.columns is tensors.columns:
        return ops.columns
    return None


def statistics_of(
    tensors: Iterable[FiledTensor],
) -> tuple[NDArray[np.float64] | None, list[int], dict[int, Mapping[str, StatisticValue]]]:
    """Return the summaries, the indices of tensors without one, and the statistics that summaries do not contain, as in `StepColumns`.

    The summaries are None if no tensor has one.
    """
    summaries: list[tuple[float, ...]] = []
    bare: list[int] = []
    others: dict[int, Mapping[str, StatisticValue]] = {}
    for place, statistics in enumerate([tensor.statistics for tensor in tensors]):
        if type(statistics) is SummaryStatistics:  # isinstance calls the abstract base class, which is slow
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
    # From a list of tuples, numpy takes four times as long.
    numbers = np.fromiter(chain.from_iterable(summaries), np.float64, count=len(summaries) * width)
    return numbers.reshape(-1, width), bare, others


def extremes_of(tensors: Iterable[FiledTensor]) -> dict[int, Extremes]:
    """Return max and min by the rules of a device, by tensor index, for tensors that have them besides a summary."""
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
    """Copy what is known about rows into `found`, by index. The index of the first row is `start`."""
    if by_row:
        known = map(by_row.get, rows.tolist())
        found.update((start + place, each) for place, each in enumerate(known) if each is not None)


def _summary(row: Sequence[float]) -> Summary | None:
    return None if math.isnan(row[0]) else Summary._make(row)


def _find(starts: Sequence[int], place: int) -> tuple[int, int]:
    """Return the part that contains an index, and the index within that part."""
    part = bisect_right(starts, place) - 1
    return part, place - starts[part]
