"""Prepares the records of one call, a batch, for the index and for statistic.csv.

A regular training runs the same operators on the same tensors in every step. What ran is a `Pattern`. A batch that repeats one of the last few has
the same pattern object, so code that caches by pattern can compare with `is`. The arguments of operators may differ (`Batch.arguments`): for example,
Adam divides by a different number in each step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import is_
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from opdump.records import WITHOUT_KERNEL, FiledTensor, OpRecord, StatisticValue
from opdump.step_columns import BlockRun, OtherArguments, StepColumns, columns_of, statistics_of

Key = tuple[object, ...]


# Not compared by value: `Batches` finds out once whether a batch repeats an earlier one.
@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """What ran: everything except time stamps, statistics and files. Arguments of operators are those of the first time."""

    operators: Sequence[Key]
    """For each operator, its columns in the index's `operators` in order, without the arguments and with the stack by identity."""
    places: Sequence[int]
    """For each tensor, the index of its operator."""
    signatures: Sequence[Key]
    """For each tensor, its columns in the index's `signatures` in order, with shape and memory as objects."""
    first_operators: tuple[OpRecord, ...]
    """The first operators of this pattern, with their arguments. They keep alive the objects whose identities are in `operators`."""
    graph_ids: frozenset[int]
    """Graphs that executed something."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The records of a step, or of a part of it."""

    pattern: Pattern
    ops: Sequence[OpRecord]
    """The operators passed in, followed by operators of tensors that were not among them."""
    tensors: Sequence[FiledTensor]
    timestamps: list[int]
    """One for each of `ops`."""
    arguments: OtherArguments
    """By operator index, the arguments that differ from those in the pattern."""
    summaries: NDArray[np.float64] | None
    """A row of `SUMMARY_FIELDS` for each tensor, NO_SUMMARY for a tensor without one. None if no tensor has one."""
    bare: Sequence[int]
    """The indices of tensors without a summary."""
    others: Mapping[int, Mapping[str, StatisticValue]]
    """By tensor index, statistics that are not in the summary (digests, statistics of extensions), or all statistics of a tensor without one."""
    is_of_one_step: bool
    """Whether all operators name the same step."""


@dataclass(slots=True, eq=False)
class _Known:
    """What earlier batches ran."""

    pattern: Pattern
    parts: Sequence[Key] = ()
    """The keys of the parts if the last batch came in columns; equal for a batch that runs the same."""
    arguments: OtherArguments = field(default_factory=dict)
    """The arguments in these parts that differ from those in the pattern."""


_MOST_RECENT: Final = 4
_MOST_OPERATORS: Final = 50_000
"""Limit for all patterns that are kept except the last. A training has a few kinds of steps; of very long steps, only the last is kept."""


class Batches:
    """Creates batches, and keeps the last patterns. `arguments` of operators must not be changed after they were passed in."""

    def __init__(self) -> None:
        self._recent: list[_Known] = []
        """The last one is first."""

    @property
    def recent(self) -> list[Pattern]:
        """The patterns that are kept."""
        return [known.pattern for known in self._recent]

    def of(self, ops: Sequence[OpRecord], tensors: Sequence[FiledTensor]) -> Batch:
        columns = columns_of(ops, tensors)
        if columns is not None:
            return self._of_columns(columns, ops, tensors)
        ops, places = self._with_owners(ops, tensors)
        pattern = self._of_records(ops, places, tensors).pattern
        is_of_one_step = len({op.step for op in ops}) <= 1
        timestamps = [op.timestamp for op in ops]
        arguments = _other_arguments(pattern, enumerate(op.arguments for op in ops))
        return Batch(pattern, ops, tensors, timestamps, arguments, *statistics_of(tensors), is_of_one_step)

    def _of_columns(self, columns: StepColumns, ops: Sequence[OpRecord], tensors: Sequence[FiledTensor]) -> Batch:
        """Return a batch from columns. If it repeats a recent batch, no records are created."""
        parts = _keys_of_parts(columns)
        if parts is None:  # a tensor whose operator was written before
            return self.of(*columns.records)
        known = next((each for each in self._recent if each.parts == parts), None)
        if known is None:
            all_ops, all_tensors = columns.records
            owned = _with_owners(all_ops, [tensor.op for tensor in all_tensors])
            known = self._of_records(*owned, all_tensors)
            known.parts = parts
            told = (
                (start + place, op.arguments)
                for part, start in zip(columns.parts, columns.op_starts, strict=False)
                if isinstance(part, BlockRun)
                for place, op in enumerate(part.pattern.sequence.ops)
            )
            known.arguments = _other_arguments(known.pattern, told)
        else:
            self._is_last(known)
        pattern = known.pattern
        singles = ((place, op.arguments) for op, place in columns.singles)
        given = chain(known.arguments.items(), singles, columns.other_arguments.items())
        arguments = _other_arguments(pattern, dict(given).items())
        has_summaries = len(columns.bare) < len(columns.summaries)
        return Batch(
            pattern,
            ops,
            tensors,
            columns.timestamps,
            arguments,
            columns.summaries if has_summaries else None,
            columns.bare,
            columns.others,
            is_of_one_step=True,
        )

    def _of_records(self, ops: Sequence[OpRecord], places: Sequence[int], tensors: Sequence[FiledTensor]) -> _Known:
        """Return one of the last patterns if these records repeat it, else a new one."""
        operators, signatures = operator_keys(ops), signature_keys(tensors)
        for known in self._recent:
            pattern = known.pattern
            if (pattern.operators, pattern.places, pattern.signatures) == (operators, places, signatures):
                break
        else:
            graph_ids = frozenset(op.graph_id for op in ops if op.skip not in WITHOUT_KERNEL)
            known = _Known(Pattern(operators, places, signatures, tuple(ops), graph_ids))
        self._is_last(known)
        return known

    def _is_last(self, known: _Known) -> None:
        self._recent = [known, *(each for each in self._recent if each is not known)][:_MOST_RECENT]
        while len(self._recent) > 1 and sum(len(each.pattern.operators) for each in self._recent[1:]) > _MOST_OPERATORS:
            self._recent.pop()

    def forget(self) -> None:
        """Release the memory of the last patterns; the next batch repeats none."""
        self._recent = []

    def _with_owners(
        self, ops: Sequence[OpRecord], tensors: Sequence[FiledTensor]
    ) -> tuple[Sequence[OpRecord], Sequence[int]]:
        owners = [tensor.op for tensor in tensors]
        for last in self.recent:
            if len(last.first_operators) == len(ops) and len(last.places) == len(owners):
                # Checking whether the last indices are still right takes a quarter of the time of finding them.
                expected = map(ops.__getitem__, last.places)
                if all(map(is_, owners, expected)):
                    return ops, last.places
        return _with_owners(ops, owners)


def operator_keys(ops: Iterable[OpRecord]) -> list[Key]:
    """Return the keys of operators, as in `Pattern.operators`."""
    return [
        (
            op.op_type,
            op.op_name,
            op.net_name,
            op.graph_id,
            op.rank_id,
            op.device_id,
            op.task_id,
            op.stream_id,
            op.phase,
            op.kernel,
            op.forward_op,
            op.order,
            op.occurrence,
            op.skip,
            id(op.stack),
        )
        for op in ops
    ]


def signature_keys(tensors: Iterable[FiledTensor]) -> list[Key]:
    """Return the keys of tensors, as in `Pattern.signatures`."""
    return [
        (
            tensor.io,
            tensor.slot,
            tensor.dtype,
            tensor.shape,
            tensor.format,
            tensor.data_size,
            tensor.argument,
            tensor.source,
            tensor.skip,
            tensor.sample,
            tensor.memory,
        )
        for tensor in tensors
    ]


def _keys_of_parts(columns: StepColumns) -> list[Key] | None:
    """Return keys that are equal for steps that differ only in time stamps, statistics and arguments. None if a tensor's operator is not in the
    step.
    """
    places = {id(op): place for op, place in columns.singles}
    keys: list[Key] = []
    for part in columns.parts:
        if isinstance(part, BlockRun):
            keys.append(part.key)
            continue
        owners = [places.get(id(tensor.op)) for tensor in part.tensors]
        if None in owners:
            return None
        keys.append((operator_keys(part.ops), signature_keys(part.tensors), owners))
    return keys


def _other_arguments(pattern: Pattern, given: Iterable[tuple[int, Mapping[str, Any]]]) -> OtherArguments:
    """Return, by operator index, the arguments that differ from those in the pattern. Adapters pass the same object for equal arguments."""
    first = pattern.first_operators
    return {
        place: arguments
        for place, arguments in given
        if arguments is not first[place].arguments and (arguments or first[place].arguments)
    }


def _with_owners(ops: Sequence[OpRecord], owners: Sequence[OpRecord]) -> tuple[Sequence[OpRecord], Sequence[int]]:
    """Return `ops` followed by those of `owners` that are not among them, and the index of each owner."""
    places = dict(zip(map(id, ops), range(len(ops)), strict=True))
    found = [*map(places.get, map(id, owners))]
    if None in found:
        ops = list(ops)
        for number, owner in enumerate(owners):
            place = places.setdefault(id(owner), len(ops))
            if place == len(ops):
                ops.append(owner)
            found[number] = place
    return ops, cast(list[int], found)
