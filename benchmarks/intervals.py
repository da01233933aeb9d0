"""Confidence interval of a median of ratios."""

from __future__ import annotations

import math
from collections.abc import Sequence


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The order statistics that enclose the median with 95 % confidence for any distribution; with few values, the lowest and the highest."""
    ordered = sorted(values)
    rank = max(0, math.floor((len(ordered) - 1.96 * math.sqrt(len(ordered))) / 2))
    return ordered[rank], ordered[-1 - rank]
