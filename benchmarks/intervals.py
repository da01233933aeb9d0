"""How sure a median of ratios is."""

from __future__ import annotations

import math
from collections.abc import Sequence


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The order statistics that enclose the median with 95 % confidence, whatever the distribution; all for a few values."""
    ordered = sorted(values)
    rank = max(0, math.floor((len(ordered) - 1.96 * math.sqrt(len(ordered))) / 2))
    return ordered[rank], ordered[-1 - rank]
