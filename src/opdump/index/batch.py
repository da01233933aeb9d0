"""Prepares the records of one call, a batch, for the index and for statistic.csv.

A regular training runs the same operators on the same tensors in every step. What ran is a `Pattern`, and a batch that
repeats the last one has the very same: who keeps something by pattern finds that out with `is`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import is_
from typing import cast

import numpy as np
from numpy.typing import NDArray

from opdump.index.schema import NO_SUMMARY
from opdump.records import FiledTensor, OpRecord, StatisticValue
from opdump.statistics import SummaryStatistics

Key = tuple[object, ...]


# Not compared by value: that a batch repeats the last is found out once, by `Batches`.
@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """What ran: all but time stamps, statistics and files."""

    operators: Sequence[Key]
    """Of each operator the columns of the index's `operators` in order, with stack and arguments by identity."""
    places: Sequence[int]
    """Of each tensor the place of its operator."""
    signatures: Sequence[Key]
    """Of each tensor the columns of the index's `signatures` in order, shape and memory as they are."""
    first_operators: tuple[OpRecord, ...]
    """The first operators of this pattern: they keep the identities in `operators` from being given to other objects."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The records of a step, or of a part of it."""

    pattern: Pattern
    ops: Sequence[OpRecord]
    """Those that were given, then operators of tensors that were not among them."""
    tensors: Sequence[FiledTensor]
    timestamps: list[int]
    """One for each of `ops`."""
    summaries: NDArray[np.float64] | None
    """A row of `SUMMARY_FIELDS` for each tensor, NO_SUMMARY where it has none; None where no tensor has one."""
    bare: Sequence[int]
    """The places of tensors without a summary."""
    others: Mapping[int, Mapping[str, StatisticValue]]
    """By a tensor's place, what its summary does not give: digests, statistics of packages; or all statistics of one without a summary."""


class Batches:
    """Makes batches, and keeps the last pattern. `arguments` of operators must not be changed after they were handed over."""

    def __init__(self) -> None:
        self._last: Pattern | None = None

    def of(self, ops: Sequence[OpRecord], tensors: Sequence[FiledTensor]) -> Batch:
        ops, places = self._with_owners(ops, tensors)
        last = self._last
        operators, signatures = operator_keys(ops), signature_keys(tensors)
        if last is not None and (last.operators, last.places, last.signatures) == (operators, places, signatures):
            pattern = last
        else:
            pattern = self._last = Pattern(operators, places, signatures, tuple(ops))
        return Batch(pattern, ops, tensors, [op.timestamp for op in ops], *statistics_of(tensors))

    def forget(self) -> None:
        """Give back the memory of the last pattern; the next batch repeats none."""
        self._last = None

    def _with_owners(
        self, ops: Sequence[OpRecord], tensors: Sequence[FiledTensor]
    ) -> tuple[Sequence[OpRecord], Sequence[int]]:
        owners = [tensor.op for tensor in tensors]
        last = self._last
        if last is not None and len(last.first_operators) == len(ops) and len(last.places) == len(owners):
            # To see that the last places are still right takes a quarter of the time of finding them.
            expected = map(ops.__getitem__, last.places)
            if all(map(is_, owners, expected)):
                return ops, last.places
        return _with_owners(ops, owners)


def operator_keys(ops: Iterable[OpRecord]) -> list[Key]:
    """The keys of operators, as in `Pattern.operators`."""
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
            id(op.arguments) if op.arguments else 0,
        )
        for op in ops
    ]


def signature_keys(tensors: Iterable[FiledTensor]) -> list[Key]:
    """The keys of tensors, as in `Pattern.signatures`."""
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


def statistics_of(
    tensors: Iterable[FiledTensor],
) -> tuple[NDArray[np.float64] | None, list[int], dict[int, Mapping[str, StatisticValue]]]:
    """Computes `Batch.summaries`, `bare` and `others`."""
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


def _with_owners(ops: Sequence[OpRecord], owners: Sequence[OpRecord]) -> tuple[Sequence[OpRecord], Sequence[int]]:
    """`ops` and those of `owners` that are not among them, and the place of each owner."""
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
