"""How far the statistics of two tensors are apart."""

from __future__ import annotations

import math
from typing import Final

from opdump.records import TensorRecord

DIFFERS: Final = 1e-3
"""Statistics that are further apart, relative to the root mean square of the elements, are those of different tensors."""
_NAMES: Final = ("max", "min", "avg", "l2norm")


def apart(one: TensorRecord, other: TensorRecord) -> float | None:
    """How far the statistics are apart, relative to the root mean square of the elements; None where they cannot be compared."""
    if math.prod(one.shape) != math.prod(other.shape):
        return math.inf
    names = [name for name in _NAMES if name in one.statistics and name in other.statistics]
    if not names:
        return None
    size = math.prod(one.shape)
    scale = _scale(one, size)
    worst = 0.0
    for name in names:
        before, after = float(one.statistics[name]), float(other.statistics[name])
        if before == after or (math.isnan(before) and math.isnan(after)):
            continue
        distance = abs(before - after) / (math.sqrt(size) if name == "l2norm" else 1.0)
        if not math.isfinite(distance):
            return math.inf
        worst = max(worst, distance / scale if scale else math.inf)
    return worst


def _scale(record: TensorRecord, size: int) -> float:
    if "l2norm" in record.statistics:
        return float(record.statistics["l2norm"]) / math.sqrt(size) if size else 0.0
    return max(abs(float(record.statistics.get(name, 0.0))) for name in ("max", "min"))


def same_statistics(one: TensorRecord, other: TensorRecord) -> bool:
    """Whether both have the same statistics, NaN being the same as NaN."""
    return one.statistics.keys() == other.statistics.keys() and all(
        value == other.statistics[name]
        or (
            value != value  # noqa: PLR0124  NaN
            and other.statistics[name] != other.statistics[name]
        )
        for name, value in one.statistics.items()
    )
