"""A step as a table: what it ran is a template, and what differs from run to run is in columns of numbers.

    template = StepTemplate(ops, slots).on(facts)       # operators that run one after the other, on these tensors
    run = TemplateRun(template, step=3, timestamps=range(10, 20), rows=rows)
    table = StepTable([run, Singles(ops, tensors)], summaries)
    table.ops, table.tensors                            # views: sequences of records, created when they are read

A training runs the same operators on the same tensors in each step. Such a step has the same templates as the step before, and no records are
created for its operators and tensors: neither when it is captured, nor when a dump is read.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain, count, repeat
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from opdump.kernels import SUMMARY_FIELDS, Summary
from opdump.records import IO, FiledTensor, Memory, OpRecord, Payload, SkipReason, StatisticValue, TensorRecord
from opdump.statistics import Extremes, SummaryStatistics

NO_SUMMARY: Final = (math.nan,) + (0.0,) * 10
"""The row of a tensor without a summary; the first field of a summary, its count, is never NaN."""

VALUE: Final = "Parameter"
"""op_type of a value that no operator produced: it is written, but does not count as executed."""
_NO_EXTREMES: Final[Mapping[int, Extremes]] = {}
OtherArguments: TypeAlias = Mapping[int, Mapping[str, Any]]
"""By the index of an operator, arguments that differ from those in the template, such as a learning rate that changes with each step."""
_NO_OTHERS: Final[Mapping[int, Mapping[str, StatisticValue]]] = {}
_NO_FILES: Final[Mapping[int, str]] = {}
_NONE_COUNTED: Final[Mapping[SkipReason, int]] = {}
_NOT_FINITE: Final = slice(SUMMARY_FIELDS.index("nan"), SUMMARY_FIELDS.index("negative_inf") + 1)

TensorSlot = tuple[int, IO, int, str, str, int]
"""A slot of an operator in a template: index of the operator, io, slot, argument, source, and index of the tensor's facts."""


class TensorFacts(NamedTuple):
    """The facts about a tensor, without its statistics."""

    dtype: str
    shape: tuple[int, ...]
    data_size: int
    skip: SkipReason = ""
    memory: Memory | None = None
    format: str = "DefaultFormat"
    sample: int = 0


@dataclass(eq=False)
class StepTemplate:
    """What a step, or a block of one, ran: operators one after the other, and their tensors. Compared by identity."""

    ops: Sequence[OpRecord]
    """Records without valid time stamp, step, and changing arguments."""
    slots: Sequence[TensorSlot]
    facts: Sequence[TensorFacts] = ()
    """The facts of each tensor."""
    _last: StepTemplate | None = field(default=None, init=False)

    def on(self, facts: Sequence[TensorFacts]) -> StepTemplate:
        """Return the template with these facts: the same object if they equal those of the last call."""
        if self._last is None or (self._last.facts is not facts and self._last.facts != facts):
            self._last = StepTemplate(self.ops, self.slots, facts)
        return self._last

    @cached_property
    def tensor_places(self) -> NDArray[np.intp]:
        """The index of the facts of each slot."""
        return np.array([slot[-1] for slot in self.slots], np.intp)

    @cached_property
    def owners(self) -> NDArray[np.intp]:
        """The index of the operator of each slot."""
        return np.array([slot[0] for slot in self.slots], np.intp)

    @cached_property
    def names(self) -> Mapping[str, str]:
        """The operators and their types."""
        return {op.op_name: op.op_type for op in self.ops}

    @cached_property
    def slots_of(self) -> Mapping[int, Sequence[int]]:
        """The indices of the slots of each operator that has some."""
        found: dict[int, list[int]] = {}
        for place, slot in enumerate(self.slots):
            found.setdefault(slot[0], []).append(place)
        return found

    @cached_property
    def slots_by_directory(self) -> Mapping[tuple[str, int], NDArray[np.intp]]:
        """The indices of the slots of each network and graph."""
        found: dict[tuple[str, int], list[int]] = {}
        for place, slot in enumerate(self.slots):
            op = self.ops[slot[0]]
            found.setdefault((op.net_name, op.graph_id), []).append(place)
        return {directory: np.array(places, np.intp) for directory, places in found.items()}

    @cached_property
    def op_types(self) -> Counter[str]:
        """Number of operators of each type."""
        return Counter(op.op_type for op in self.ops)

    @cached_property
    def left_out(self) -> Counter[SkipReason]:
        """Number of tensors without data, by reason."""
        skips = (self.facts[slot[-1]].skip for slot in self.slots)
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
class TemplateRun:
    """One run of a template."""

    template: StepTemplate
    step: int
    timestamps: Sequence[int]
    """The time stamp of each operator."""
    rows: NDArray[np.intp]
    """The row of the summary of each slot, in the array that a `StepTable` receives."""
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
        return self.template, self.rank_id, self.later

    def op(self, place: int) -> OpRecord:
        """Return the record of one operator."""
        op, time = self.template.ops[place], self.timestamps[place]
        return ran(op, time, self.step, self.arguments.get(place, op.arguments), self.rank_id, self.later)

    def records(self) -> list[OpRecord]:
        """Return the records of all operators."""
        return [*map(self.op, range(len(self.timestamps)))]


_Known = TypeVar("_Known")
# A bound would be checked too early: mypy does not know the fields of a dataclass then, and finds that no record is a `FiledTensor`.
Filed_co = TypeVar("Filed_co", covariant=True)


@dataclass(frozen=True, eq=False)
class Singles(Generic[Filed_co]):
    """Operators and tensors that were recorded one by one. The operators of the tensors may be elsewhere."""

    ops: Sequence[OpRecord]
    tensors: Sequence[Filed_co]


class StepTable(Generic[Filed_co]):
    """The parts of a step, in the order in which they were recorded. Operators and tensors have an index each, over all parts."""

    def __init__(
        self,
        parts: Sequence[TemplateRun | Singles[Filed_co]],
        summaries: NDArray[np.float64],
        extremes: Mapping[int, Extremes] = _NO_EXTREMES,
        others: Mapping[int, Mapping[str, StatisticValue]] = _NO_OTHERS,
        *,
        files: Mapping[int, str] = _NO_FILES,
        open_file: Callable[[str, str, tuple[int, ...]], Payload] | None = None,
        counted: Mapping[SkipReason, int] = _NONE_COUNTED,
    ) -> None:
        """`summaries` are those of the runs, shape (n, 11); the last row is NO_SUMMARY, to which row -1 refers.

        By row number, `extremes` are max and min by the rules of a device, and `others` the other statistics. A table that was read has `files`, by
        tensor index, which `open_file` opens for an element type and the stored shape. `counted`: the number of operators without data that ran and
        that an earlier step lists, by reason.
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
            if isinstance(part, TemplateRun):
                rows.append(part.rows)
                _by_place(part.rows, start, extremes, found)
                _by_place(part.rows, start, others, further)
                continue
            tensors = cast(Sequence[FiledTensor], part.tensors)
            rows.append(np.full(len(tensors), -1, np.intp))
            numbers, of_part, extremes_of_part = statistics_of(tensors)
            found.update((start + place, each) for place, each in extremes_of_part.items())
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
        self.files = files
        self._open_file = open_file
        self.counted = counted

    @classmethod
    def of(
        cls,
        ops: Sequence[OpRecord],
        tensors: Sequence[Filed_co],
        counted: Mapping[SkipReason, int] = _NONE_COUNTED,
    ) -> StepTable[Filed_co]:
        """Return the table of which these are all operators and all tensors, or else a table with these records."""
        if isinstance(ops, _Ops) and isinstance(tensors, _Tensors) and ops.table is tensors.table:
            return cast("StepTable[Filed_co]", ops.table)
        return cls([Singles(ops, tensors)], np.array([NO_SUMMARY]), counted=counted)

    @property
    def template(self) -> StepTemplate | None:
        """The template of which the whole step is one run, or None if the step has other parts."""
        only = self.parts[0] if len(self.parts) == 1 else None
        return only.template if isinstance(only, TemplateRun) else None

    @property
    def ops(self) -> Sequence[OpRecord]:
        """All operators."""
        return _Ops(self)

    @property
    def tensors(self) -> Sequence[Filed_co]:
        """All tensors."""
        return _Tensors(self)

    @property
    def step(self) -> int:
        """The step of the first operator, or 0 if there is none."""
        return self.op(0).step if self.op_starts[-1] else 0

    @property
    def timestamps(self) -> list[int]:
        """The time stamp of each operator."""
        found: list[int] = []
        for part in self.parts:
            found += part.timestamps if isinstance(part, TemplateRun) else [op.timestamp for op in part.ops]
        return found

    @property
    def is_of_one_step(self) -> bool:
        """Whether all operators name the same step."""
        steps: set[int] = set()
        for part in self.parts:
            steps.update([part.step] if isinstance(part, TemplateRun) else [op.step for op in part.ops])
        return len(steps) <= 1

    @property
    def has_summaries(self) -> bool:
        """Whether any tensor has a summary."""
        return len(self.bare) < len(self.summaries)

    @property
    def with_summary(self) -> NDArray[np.bool_]:
        """Whether each tensor has a summary, shape (n,)."""
        return ~np.isnan(self.summaries[:, 0])

    @property
    def singles(self) -> Iterator[tuple[OpRecord, int]]:
        """The operators that were recorded one by one, and their indices."""
        return chain.from_iterable(
            zip(part.ops, count(start), strict=False)
            for part, start in zip(self.parts, self.op_starts, strict=False)
            if isinstance(part, Singles)
        )

    @property
    def other_arguments(self) -> dict[int, Mapping[str, Any]]:
        """By operator index, the arguments that differ from those in the template."""
        return {
            start + place: arguments
            for part, start in zip(self.parts, self.op_starts, strict=False)
            if isinstance(part, TemplateRun)
            for place, arguments in part.arguments.items()
        }

    @cached_property
    def owners(self) -> NDArray[np.intp]:
        """The index of the operator of each tensor; -1 for an operator that was written before."""
        places = {id(op): place for op, place in self.singles}
        found = [
            part.template.owners + start
            if isinstance(part, TemplateRun)
            else np.array([*map(places.get, map(id, _operators_of(part)), repeat(-1))], np.intp)
            for part, start in zip(self.parts, self.op_starts, strict=False)
        ]
        return np.concatenate(found) if found else np.zeros(0, np.intp)

    @cached_property
    def _tensors_of_singles(self) -> Mapping[int, Sequence[int]]:
        found: dict[int, list[int]] = {}
        for part, start in zip(self.parts, self.tensor_starts, strict=False):
            if isinstance(part, Singles):
                for place in range(start, start + len(part.tensors)):
                    found.setdefault(int(self.owners[place]), []).append(place)
        return found

    def op(self, place: int) -> OpRecord:
        """Return the record of one operator."""
        part, within = _find(self.op_starts, place)
        found = self.parts[part]
        return found.op(within) if isinstance(found, TemplateRun) else found.ops[within]

    def tensor(self, place: int, op: OpRecord) -> Filed_co:
        """Return the record of one tensor of this operator."""
        number, within = _find(self.tensor_starts, place)
        part = self.parts[number]
        if isinstance(part, Singles):
            return part.tensors[within]
        return self._tensor(part.template, within, place, op, self.summaries[place].tolist())

    def execution(self, place: int) -> tuple[OpRecord, list[Filed_co]]:
        """Return one operator and its tensors. No other records are created."""
        number, within = _find(self.op_starts, place)
        part, op = self.parts[number], self.op(place)
        if isinstance(part, Singles):
            return op, [self.tensor(each, op) for each in self._tensors_of_singles.get(place, ())]
        start = self.tensor_starts[number]
        return op, [self.tensor(start + each, op) for each in part.template.slots_of.get(within, ())]

    def bare_tensors(self) -> Iterator[Filed_co | TensorFacts]:
        """Yield the tensors without a summary. Those of templates have no other statistics while they are captured, and are represented by their
        facts.
        """
        for place in self.bare:
            part, within = _find(self.tensor_starts, place)
            found = self.parts[part]
            if isinstance(found, Singles):
                yield found.tensors[within]
            else:
                yield found.template.facts[found.template.slots[within][-1]]

    def op_names(self, begin: int, end: int | None = None) -> Iterator[str]:
        """Yield the names of the operators in a range of indices, without values that no operator produced."""
        for part, start in zip(self.parts, self.op_starts, strict=False):
            ops = _ops_of(part)
            stop = len(ops) if end is None else max(0, end - start)
            for op in ops[max(0, begin - start) : stop]:
                if op.op_type != VALUE:
                    yield op.op_name

    @property
    def op_types(self) -> set[str]:
        """The types of all operators."""
        found: set[str] = set()
        for part in self.parts:
            found.update(part.template.op_types if isinstance(part, TemplateRun) else [op.op_type for op in part.ops])
        return found

    @property
    def not_finite(self) -> NDArray[np.intp]:
        """The indices of tensors whose summary counts NaN or infinities."""
        return np.flatnonzero(self.summaries[:, _NOT_FINITE].any(axis=1))

    @cached_property
    def records(self) -> tuple[Sequence[OpRecord], Sequence[Filed_co]]:
        """All operators, and all tensors with references to their operators."""
        ops: list[OpRecord] = []
        tensors: list[Filed_co] = []
        for part, start in zip(self.parts, self.tensor_starts, strict=False):
            if isinstance(part, Singles):
                ops += part.ops
                tensors += part.tensors
                continue
            own = part.records()
            ops += own
            numbers = self.summaries[start : start + len(part.rows)].tolist()
            for place, (slot, row) in enumerate(zip(part.template.slots, numbers, strict=True)):
                tensors.append(self._tensor(part.template, place, start + place, own[slot[0]], row))
        return ops, tensors

    def _tensor(self, template: StepTemplate, within: int, place: int, op: OpRecord, row: Sequence[float]) -> Filed_co:
        """Return the record of the tensor in a slot of a template; `place` is its index, and `row` its summary."""
        _, io, slot, argument, source, tensor = template.slots[within]
        dtype, shape, data_size, skip, memory, layout, sample = template.facts[tensor]
        others, file = self.others.get(place), self.files.get(place)
        statistics: Mapping[str, StatisticValue] = others or {}
        if not math.isnan(row[0]):
            statistics = SummaryStatistics(Summary._make(row), others, self.extremes.get(place))
        payload = None
        if file is not None and self._open_file is not None:
            payload = self._open_file(file, dtype, (sample,) if sample else shape)
        record = TensorRecord(
            op, io, slot, dtype, shape, layout, payload, statistics, argument, source, data_size, skip, sample, memory
        )
        return cast(Filed_co, record)


class _Ops(Sequence[OpRecord]):
    """The operators of a step. A single one is created by itself; all of them are created once."""

    def __init__(self, table: StepTable[Any]) -> None:
        self.table = table

    def __len__(self) -> int:
        return self.table.op_starts[-1]

    def __iter__(self) -> Iterator[OpRecord]:
        return iter(self.table.records[0])

    @overload
    def __getitem__(self, place: int) -> OpRecord: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[OpRecord]: ...
    def __getitem__(self, place: int | slice) -> OpRecord | Sequence[OpRecord]:
        if isinstance(place, slice) or "records" in vars(self.table):
            return self.table.records[0][place]
        return self.table.op(range(len(self))[place])


class _Tensors(Sequence[Any]):
    """The tensors of a step. All of them are created once."""

    def __init__(self, table: StepTable[Any]) -> None:
        self.table = table

    def __len__(self) -> int:
        return self.table.tensor_starts[-1]

    def __getitem__(self, place: int | slice) -> Any:
        return self.table.records[1][place]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.table.records[1])


_Facts = TypeVar("_Facts")


class FactsByTemplate(Generic[_Facts]):
    """Caches the result of `make` for a table, for later tables that ran the same template with summaries for the same tensors."""

    _MOST_KNOWN = 16  # a regular training has a few templates

    def __init__(self, make: Callable[[StepTable[TensorRecord]], _Facts]) -> None:
        self._make = make
        self._known: dict[StepTemplate, tuple[NDArray[np.bool_], _Facts]] = {}

    def of(self, table: StepTable[TensorRecord]) -> _Facts:
        template, with_summary = table.template, table.with_summary
        if template is None:
            return self._make(table)
        known = self._known.get(template)
        if known is None or not np.array_equal(known[0], with_summary):
            if len(self._known) >= self._MOST_KNOWN:
                self._known.clear()
            known = self._known[template] = with_summary, self._make(table)
        return known[1]


def statistics_of(
    tensors: Iterable[FiledTensor],
) -> tuple[NDArray[np.float64] | None, dict[int, Mapping[str, StatisticValue]], dict[int, Extremes]]:
    """Return the summaries, the statistics that summaries do not contain, and max and min by the rules of a device, as in `StepTable`.

    The summaries are None if no tensor has one.
    """
    summaries: list[tuple[float, ...]] = []
    bare = 0
    extremes: dict[int, Extremes] = {}
    others: dict[int, Mapping[str, StatisticValue]] = {}
    for place, statistics in enumerate([tensor.statistics for tensor in tensors]):
        if type(statistics) is SummaryStatistics:  # isinstance calls the abstract base class, which is slow
            summaries.append(statistics.summary)
            if statistics.others:
                others[place] = statistics.others
            if statistics.extremes is not None:
                extremes[place] = statistics.extremes
        else:
            summaries.append(NO_SUMMARY)
            bare += 1
            if statistics:
                others[place] = statistics
    if bare == len(summaries):
        return None, others, extremes
    width = len(NO_SUMMARY)
    # From a list of tuples, numpy takes four times as long.
    numbers = np.fromiter(chain.from_iterable(summaries), np.float64, count=len(summaries) * width)
    return numbers.reshape(-1, width), others, extremes


def _ops_of(part: TemplateRun | Singles[Any]) -> Sequence[OpRecord]:
    """Return the operators of a part; those of a template are without valid time stamp."""
    return part.template.ops if isinstance(part, TemplateRun) else part.ops


def _operators_of(part: Singles[Any]) -> list[OpRecord]:
    """Return the operator of each tensor."""
    return [tensor.op for tensor in cast(Sequence[FiledTensor], part.tensors)]


def _tensors_of(part: TemplateRun | Singles[Any]) -> Sequence[object]:
    return part.template.slots if isinstance(part, TemplateRun) else part.tensors


def _by_place(rows: NDArray[np.intp], start: int, by_row: Mapping[int, _Known], found: dict[int, _Known]) -> None:
    """Copy what is known about rows into `found`, by index. The index of the first row is `start`."""
    if by_row:
        known = map(by_row.get, rows.tolist())
        found.update((start + place, each) for place, each in enumerate(known) if each is not None)


def _find(starts: Sequence[int], place: int) -> tuple[int, int]:
    """Return the part that contains an index, and the index within that part."""
    part = bisect_right(starts, place) - 1
    return part, place - starts[part]
