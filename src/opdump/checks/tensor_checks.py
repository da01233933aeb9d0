"""The checks of one tensor by its statistics: NaN, infinities, floats that are all zero, floats near the largest of their type."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from opdump.checks.finding import Thresholds
from opdump.checks.inspected_tensor import INTEGERS
from opdump.checks.tensor_stats import TensorStats

LARGEST: Final[Mapping[str, float]] = {
    "float64": 1.7976931348623157e308,
    "float32": 3.4028234663852886e38,
    "bfloat16": 3.3895313892515355e38,
    "float16": 65504.0,
    "float8_e5m2": 57344.0,
    "float8_e4m3fn": 448.0,
}


def nan(stats: TensorStats, _dtype: str, _thresholds: Thresholds) -> str:
    """`3 of 6 elements`, `3 of the first 6 of 1000 elements`; empty if there are none, or if nothing is known."""
    return _share(stats.nan, stats)


def inf(stats: TensorStats, _dtype: str, _thresholds: Thresholds) -> str:
    """The same for infinities."""
    return _share(stats.inf, stats)


def all_zero(stats: TensorStats, dtype: str, thresholds: Thresholds) -> str:
    """`6 elements`. Empty for integers and bool, which are often zero for good reason, for fewer than `zeros` elements, and for a
    sample, because the rest is unknown.
    """
    if dtype in INTEGERS or dtype == "bool" or stats.count < thresholds.zeros or stats.whole is not None:
        return ""
    return f"{stats.count} elements" if stats.zero == stats.count else ""


def extreme(stats: TensorStats, dtype: str, thresholds: Thresholds) -> str:
    """`60000, the largest float16 is 65504`: the next operation may overflow. Empty for other types, and for extremes that are
    not finite, which other checks report.
    """
    largest = LARGEST.get(dtype)
    if largest is None:
        return ""
    for value in (stats.max, stats.min):
        if value is not None and math.isfinite(value) and abs(value) >= thresholds.extreme * largest:
            return f"{value:g}, the largest {dtype} is {largest:g}"
    return ""


def _share(count: int | None, stats: TensorStats) -> str:
    if not count:
        return ""
    return f"{count} of {stats.elements}" if count > 0 else f"some of {stats.elements}"
