"""Counts the NaN and infinite elements of a tensor by its statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from opdump.records import StatisticValue

MEASURES: Final = ("max", "min", "avg", "l2norm")
_NOT_FINITE: Final = ("nan count", "negative inf count", "positive inf count")


def not_finite(statistics: Mapping[str, StatisticValue]) -> int | None:
    """How many elements are NaN or infinite; None where the statistics cannot answer that.

    Without the counts, a NaN or an infinity among max, min, avg and l2norm means at least one.
    """
    counts = [int(statistics[name]) for name in _NOT_FINITE if name in statistics]
    if len(counts) == len(_NOT_FINITE):
        return sum(counts)
    values = [statistics[name] for name in MEASURES if name in statistics]
    if any(isinstance(value, float) and not math.isfinite(value) for value in values):
        return max(1, sum(counts))
    return sum(counts) or None


def has_nan(statistics: Mapping[str, StatisticValue]) -> bool:
    """Whether an element is NaN; without a count, whether one of the measures is."""
    if "nan count" in statistics:
        return bool(statistics["nan count"])
    return any(isinstance(value := statistics.get(name), float) and math.isnan(value) for name in ("max", "min"))


def has_only_finite_arguments(arguments: Mapping[str, Any]) -> bool:
    """Whether no argument is or holds NaN or an infinity."""
    return all(_is_finite_argument(value) for value in arguments.values())


def _is_finite_argument(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, complex):
        return math.isfinite(value.real) and math.isfinite(value.imag)
    if isinstance(value, Mapping):  # {"float": "-inf"}, {"complex": [1.0, {"float": "nan"}]}
        return "float" not in value and all(_is_finite_argument(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return all(_is_finite_argument(item) for item in value)
    return True
