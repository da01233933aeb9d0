"""Finds a tensor of one run in another by its statistics alone: same number of elements, same max, min, mean and norm but for rounding."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from opdump.comparison.statistics_apart import Numbers, numbers_apart, numbers_of
from opdump.records import TensorRecord


class ValueIndex:
    """The tensors of a step, to be looked up by their statistics. Norms that differ by more than the ratio `wide` are not compared."""

    def __init__(self, records: Iterable[TensorRecord], wide: float) -> None:
        self._wide = wide
        by_size: dict[int, list[tuple[float, Numbers]]] = defaultdict(list)
        for record in records:
            if has_statistics(record):
                for each in (record, _complement(record)) if record.dtype == "bool" else (record,):
                    by_size[math.prod(record.shape)].append((norm_of(each), numbers_of(each)))
        self._by_size: dict[int, tuple[list[float], list[Numbers]]] = {}
        for size, found in by_size.items():
            found.sort(key=lambda each: each[0])
            self._by_size[size] = [norm for norm, _ in found], [numbers for _, numbers in found]

    def distance(self, record: TensorRecord, wide: float | None = None) -> float:
        """How far the nearest tensor is from this one (`apart`); infinite where none is near: within `wide`, where it is given."""
        wide = self._wide if wide is None else wide
        size, norm, numbers = math.prod(record.shape), norm_of(record), numbers_of(record)
        norms, others = self._by_size.get(size, ([], []))
        nearest = math.inf
        for place in self._near(norms, norm, wide):
            # The norms alone are at least so far apart.
            if norm and math.isfinite(norm) and abs(norms[place] - norm) / norm > nearest * (1 + wide):
                break
            distance = numbers_apart(numbers, others[place], size)
            if distance is not None and distance < nearest:
                nearest = distance
                if not distance:
                    break
        return nearest

    def _near(self, norms: Sequence[float], norm: float, wide: float) -> Iterator[int]:
        """The places of like norms, the nearest first."""
        if math.isinf(norm):
            yield from range(bisect_left(norms, math.inf), len(norms))
            return
        first = bisect_left(norms, norm * (1 - wide))
        last = bisect_right(norms, norm * (1 + wide))
        below, above = bisect_left(norms, norm, first, last) - 1, bisect_left(norms, norm, first, last)
        while below >= first or above < last:
            if below < first or (above < last and norms[above] - norm <= norm - norms[below]):
                yield above
                above += 1
            else:
                yield below
                below -= 1


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
