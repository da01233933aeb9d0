"""Fills time stamps and statistics into rows of statistic.csv whose operators and tensors repeat.

The output equals that of `StatisticEncoder.text`, computed from the columns of all tensors' summaries at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opdump.index.batch import Batch
from opdump.kernels import TableText
from opdump.layouts.mindspore_sync.statistic_csv import StatisticEncoder
from opdump.records import OpRecord, StatisticValue

_NO_OTHERS: Final[Mapping[str, StatisticValue]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RepeatedRows:
    """The rows of one file, for every batch with one pattern whose tensors with summaries have the same indices."""

    encoder: StatisticEncoder
    template: TableText
    op: int
    """The index of one of the operators: the file is in its directory."""
    owners: Sequence[int]
    """For each row, the index of its operator."""
    tensors: NDArray[np.intp]
    """For each row, the index of its tensor."""

    def text(self, batch: Batch) -> bytes:
        """The rows of `batch`."""
        assert batch.summaries is not None
        numbers = batch.summaries
        if len(self.tensors) < len(numbers):
            numbers = numbers[self.tensors]
        others: Sequence[Mapping[str, StatisticValue]] = (_NO_OTHERS,) * len(numbers)
        if batch.others:
            others = [batch.others.get(place, _NO_OTHERS) for place in self.tensors.tolist()]
        times = [*map(batch.timestamps.__getitem__, self.owners)]
        return self.template.fill([times, *self.encoder.columns(numbers, others)])


def repeated_rows(
    batch: Batch,
    encoder: StatisticEncoder,
    *,
    directory_of: Callable[[OpRecord], str],
    written_as: Callable[[OpRecord], tuple[OpRecord, str]],
) -> list[RepeatedRows]:
    """The fillers for the files of batches that repeat `batch`, one for each directory with rows.

    Every tensor with statistics must have a summary.
    """
    bare, ops, tensors_of_batch = set(batch.bare), list(batch.ops), list(batch.tensors)
    starts = [encoder.start(*written_as(op), timestamp="%d") for op in ops]
    places: dict[str, list[int]] = {}
    for place, (tensor, owner) in enumerate(zip(tensors_of_batch, batch.pattern.places, strict=True)):
        if place not in bare and not tensor.skip and not ops[owner].skip:
            places.setdefault(directory_of(ops[owner]), []).append(place)
    tables = []
    for tensors in places.values():
        owners = [batch.pattern.places[place] for place in tensors]
        rows = [
            starts[owner] + encoder.row(tensors_of_batch[place]) for owner, place in zip(owners, tensors, strict=True)
        ]
        tables.append(RepeatedRows(encoder, TableText("".join(rows)), owners[0], owners, np.array(tensors, np.intp)))
    return tables
