"""Finds floats near the largest of their type: the next operation may overflow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from opdump.checks.finding import Thresholds
from opdump.checks.tensor_stats import TensorStats

LARGEST: Final[Mapping[str, float]] = {
    "float64": 1.7976931348623157e308,
    "float32": 3.4028234663852886e38,
    "bfloat16": 3.3895313892515355e38,
    "float16": 65504.0,
    "float8_e5m2": 57344.0,
    "float8_e4m3fn": 448.0,
}


def extreme(stats: TensorStats, dtype: str, thresholds: Thresholds) -> str:
    """`60000, the largest float16 is 65504`; empty for other types, and where the extremes are not finite: other checks find that."""
    largest = LARGEST.get(dtype)
    if largest is None:
        return ""
    for value in (stats.max, stats.min):
        if value is not None and math.isfinite(value) and abs(value) >= thresholds.extreme * largest:
            return f"{value:g}, the largest {dtype} is {largest:g}"
    return ""
