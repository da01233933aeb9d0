"""How far the statistics of two tensors are apart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from opdump.records import StatisticValue, TensorRecord

DIFFERS: Final = 1e-3
"""Statistics that are further apart, relative to the root mean square of the elements, are those of different tensors."""
_NAMES: Final = ("max", "min", "avg", "l2norm")


def apart(one: TensorRecord, other: TensorRecord) -> float | None:
    """How far the statistics are apart, relative to the root mean square of the elements; None where they cannot be compared."""
    size = math.prod(one.shape)
    if size != math.prod(other.shape):
        return math.inf
    before, after = _numbers(one), _numbers(other)
    names = before.keys() & after.keys()
    if not names:
        return None
    worst = 0.0
    for name in names:
        a, b = before[name], after[name]
        if a == b or (math.isnan(a) and math.isnan(b)):
            continue
        distance = abs(a - b) / (math.sqrt(size) if name == "l2norm" else 1.0)
        if not math.isfinite(distance):
            return math.inf
        scale = _scale(before, size)
        worst = max(worst, distance / scale if scale else math.inf)
    return worst


def _numbers(record: TensorRecord) -> dict[str, float]:
    statistics = record.statistics
    return {name: float(value) for name in _NAMES if (value := statistics.get(name)) is not None}


def _scale(numbers: Mapping[str, float], size: int) -> float:
    """The root mean square of the elements; where their norm is not known, or infinite, the largest that is finite."""
    if math.isfinite(numbers.get("l2norm", math.inf)):
        return numbers["l2norm"] / math.sqrt(size) if size else 0.0
    ends = (abs(numbers.get(name, 0.0)) for name in ("max", "min"))
    return max((end for end in ends if math.isfinite(end)), default=0.0)


def same_statistics(one: TensorRecord, other: TensorRecord) -> bool:
    """Whether both have the same statistics, NaN being the same as NaN."""
    first, second = one.statistics, other.statistics
    return first == second or (
        first.keys() == second.keys() and all(_same(first[name], second[name]) for name in first)
    )


def _same(one: StatisticValue, other: StatisticValue) -> bool:
    both_nan = isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other)
    return both_nan or one == other
