"""Fills time stamps and statistics into rows of statistic.csv whose operators and tensors repeat.

What is printed is what `StatisticEncoder.text` prints, from the columns of all tensors' summaries at once: a step has thousands
of rows, and a function called for each of them costs more than the printing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdump.index.batch import Batch
from opdump.kernels import SUMMARY_FIELDS
from opdump.layouts.mindspore_sync.statistic_csv import NOT_COMPUTED, StatisticEncoder
from opdump.records import OpRecord

_Numbers = NDArray[np.float64]


def _average(numbers: _Numbers) -> _Numbers:
    count = _field("count")(numbers)
    result = np.full(len(numbers), np.nan)
    np.divide(_field("sum")(numbers), count, out=result, where=count != 0)
    return result


def _l2norm(numbers: _Numbers) -> _Numbers:
    result: _Numbers = np.sqrt(_field("sum_squares")(numbers))
    return result


def _field(name: str) -> Callable[[_Numbers], _Numbers]:
    place = SUMMARY_FIELDS.index(name)
    return lambda numbers: numbers[:, place]


_FROM_SUMMARIES: Final[Mapping[str, Callable[[_Numbers], _Numbers]]] = MappingProxyType(
    {
        "max": _field("max"),
        "min": _field("min"),
        "avg": _average,
        "count": _field("count"),
        "negative zero count": _field("negative"),
        "positive zero count": _field("positive"),
        "nan count": _field("nan"),
        "negative inf count": _field("negative_inf"),
        "positive inf count": _field("positive_inf"),
        "zero count": _field("zero"),
        "l2norm": _l2norm,
    }
)
"""The same values as SummaryStatistics gives by name, of many summaries at once."""


@dataclass(frozen=True, slots=True)
class RepeatedRows:
    """The rows of one file, for every batch of one pattern whose summaries are at the same places."""

    encoder: StatisticEncoder
    template: str
    op: int
    """The place of one of the operators: the file is in its directory."""
    owners: Sequence[int]
    """Of each row the place of its operator."""
    tensors: Sequence[int]
    """Of each row the place of its tensor."""

    def text(self, batch: Batch) -> str:
        """The rows of `batch`."""
        assert batch.summaries is not None
        numbers = batch.summaries
        if len(self.tensors) < len(numbers):
            numbers = numbers[list(self.tensors)]
        categories = self.encoder.categories
        width = 1 + len(categories)
        values: list[Any] = [None] * (len(self.tensors) * width)
        values[0::width] = map(batch.timestamps.__getitem__, self.owners)
        with np.errstate(all="ignore"):  # NaN and Inf are what the columns are there to show
            for column, name in enumerate(categories, start=1):
                of_summaries = _FROM_SUMMARIES.get(name)
                if of_summaries is not None:
                    values[column::width] = of_summaries(numbers).tolist()
                else:
                    others = batch.others
                    values[column::width] = [others.get(place, {}).get(name, NOT_COMPUTED) for place in self.tensors]
        return self.template % tuple(values)


def repeated_rows(
    batch: Batch,
    encoder: StatisticEncoder,
    *,
    directory_of: Callable[[OpRecord], str],
    written_as: Callable[[OpRecord], tuple[OpRecord, str]],
) -> list[RepeatedRows]:
    """What fills the files of batches that repeat `batch`, one for each directory with rows.

    Every tensor with statistics must have a summary.
    """
    bare = set(batch.bare)
    starts = [encoder.start(*written_as(op), timestamp="%d") for op in batch.ops]
    places: dict[str, list[int]] = {}
    for place, (tensor, owner) in enumerate(zip(batch.tensors, batch.pattern.places, strict=True)):
        if place not in bare and not tensor.skip and not batch.ops[owner].skip:
            places.setdefault(directory_of(batch.ops[owner]), []).append(place)
    tables = []
    for tensors in places.values():
        owners = [batch.pattern.places[place] for place in tensors]
        rows = [starts[owner] + encoder.row(batch.tensors[place]) for owner, place in zip(owners, tensors, strict=True)]
        tables.append(RepeatedRows(encoder, "".join(rows), owners[0], owners, tensors))
    return tables
