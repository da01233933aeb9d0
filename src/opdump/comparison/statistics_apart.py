"""How far the statistics of two tensors are apart."""

from __future__ import annotations

import math
from typing import Final

from opdump.comparison.fills import is_fill
from opdump.records import StatisticValue, TensorRecord
from opdump.statistics import SummaryStatistics
from opdump.statistics.table import OWN

DIFFERS: Final = 1e-3
"""Statistics that are further apart, relative to the root mean square of the elements, are those of different tensors."""
NAMES: Final = ("max", "min", "avg", "l2norm")
_DIGESTS: Final = frozenset(name for name, each in OWN.items() if each.of_bytes is not None)
Numbers = tuple[float | None, ...]
"""The statistics of `NAMES` of a tensor, None where it lacks one."""


def apart(one: TensorRecord, other: TensorRecord) -> float | None:
    """How far the statistics are apart, relative to the root mean square of the elements; None where they cannot be compared."""
    size = math.prod(one.shape)
    if size != math.prod(other.shape):
        return math.inf
    return numbers_apart(numbers_of(one), numbers_of(other), size)


def numbers_of(record: TensorRecord) -> Numbers:
    """The statistics that are compared."""
    statistics = record.statistics
    if type(statistics) is SummaryStatistics:
        found = statistics.summary
        average = found.sum / found.count if found.count else math.nan
        return found.max, found.min, average, math.sqrt(found.sum_squares)
    return tuple(None if (value := statistics.get(name)) is None else float(value) for name in NAMES)


def numbers_apart(before: Numbers, after: Numbers, size: int) -> float | None:
    """The same of two tensors of so many elements. Where both have the fill of a mask for one end, the other end tells, which is no fill."""
    for end, other in ((1, 0), (0, 1)):
        fill, mine, its = before[end], before[other], after[other]
        if fill is None or fill != after[end] or mine is None or its is None or not is_fill(fill, mine):
            continue
        if math.isfinite(fill) and math.isfinite(mine) and math.isfinite(its):
            return 0.0 if mine == its else abs(mine - its) / abs(mine) if mine else math.inf
    worst: float | None = None
    scale: float | None = None
    for place, (a, b) in enumerate(zip(before, after, strict=True)):
        if a is None or b is None:
            continue
        worst = worst or 0.0
        if a == b or (math.isnan(a) and math.isnan(b)):
            continue
        distance = abs(a - b) / (math.sqrt(size) if place == len(NAMES) - 1 else 1.0)
        if not math.isfinite(distance):
            return math.inf
        if scale is None:
            scale = _scale(before, size)
        worst = max(worst, distance / scale if scale else math.inf)
    return worst


def _scale(numbers: Numbers, size: int) -> float:
    """The root mean square of the elements; where their norm is not known, or infinite, the largest that is finite."""
    most, least, _, norm = numbers
    if norm is not None and math.isfinite(norm):
        return norm / math.sqrt(size) if size else 0.0
    ends = (abs(end) for end in (most, least) if end is not None)
    return max((end for end in ends if math.isfinite(end)), default=0.0)


def same_statistics(one: TensorRecord, other: TensorRecord) -> bool:
    """Whether both have the same statistics and digests, NaN being the same as NaN."""
    first, second = one.statistics, other.statistics
    return first == second or (
        first.keys() == second.keys() and all(_same(first[name], second[name]) for name in first)
    )


def differ_only_in_digests(one: TensorRecord, other: TensorRecord) -> bool:
    """Whether two tensors of one shape and dtype have different digests and no statistic that differs, as the same elements in another order do.

    Zeros are excluded: the sign of a zero changes a digest and no result.
    """
    first, second = one.statistics, other.statistics
    if (one.shape, one.dtype) != (other.shape, other.dtype) or first.get("max") == first.get("min") == 0:
        return False
    apart = {name for name in first.keys() & second.keys() if not _same(first[name], second[name])}
    return bool(apart) and apart <= _DIGESTS


def _same(one: StatisticValue, other: StatisticValue) -> bool:
    both_nan = isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other)
    return both_nan or one == other
