"""Finds a tensor of one run in another by its statistics alone: same number of elements, same max, min, mean and norm but for rounding."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from opdump.comparison.statistics_apart import apart
from opdump.records import TensorRecord


class ValueIndex:
    """The tensors of a step, to be looked up by their statistics. Norms that differ by more than the ratio `wide` are not compared."""

    def __init__(self, records: Iterable[TensorRecord], wide: float) -> None:
        self._wide = wide
        by_size: dict[int, dict[tuple[object, ...], TensorRecord]] = defaultdict(dict)
        for record in records:
            if has_statistics(record):
                for each in (record, _complement(record)) if record.dtype == "bool" else (record,):
                    by_size[math.prod(record.shape)][tuple(each.statistics.values())] = each
        self._by_size: dict[int, tuple[list[float], list[TensorRecord]]] = {}
        for size, found in by_size.items():
            ordered = sorted(found.values(), key=norm_of)
            self._by_size[size] = ([norm_of(record) for record in ordered], ordered)

    def distance(self, record: TensorRecord) -> float:
        """How far the nearest tensor is from this one (`apart`); infinite where none is near."""
        norms, records = self._by_size.get(math.prod(record.shape), ((), ()))
        norm = norm_of(record)
        if math.isinf(norm):
            near = records[bisect_left(norms, math.inf) :]
        else:
            near = records[bisect_left(norms, norm * (1 - self._wide)) : bisect_right(norms, norm * (1 + self._wide))]
        return min((distance for each in near if (distance := apart(record, each)) is not None), default=math.inf)


def has_statistics(record: TensorRecord) -> bool:
    """Whether there is something to tell the tensor by."""
    return not record.skip and "l2norm" in record.statistics


def norm_of(record: TensorRecord) -> float:
    """The norm of a tensor; infinite where it holds NaN."""
    norm = float(record.statistics["l2norm"])
    return math.inf if math.isnan(norm) else norm


def _complement(mask: TensorRecord) -> TensorRecord:
    """What a mask leaves out: it says the same."""
    given = mask.statistics
    size = math.prod(mask.shape)
    numbers = {
        "max": 1.0 - float(given.get("min", 0.0)),
        "min": 1.0 - float(given.get("max", 1.0)),
        "avg": 1.0 - float(given.get("avg", 0.0)),
        "l2norm": math.sqrt(max(0.0, size - float(given["l2norm"]) ** 2)),
    }
    return replace(mask, statistics={name: value for name, value in numbers.items() if name in given})
