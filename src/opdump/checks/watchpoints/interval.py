"""Interval: what is known of a number, and how it compares with a threshold.

Interval(0.2, 0.2)                the number
Interval(0, 3e-10).is_below(1e-9)  True: whatever it is, it is below
Interval(0, 3).is_below(1)         None: it may be, or not
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Interval(NamedTuple):
    """The bounds of a number. Both are NaN for a NaN, which is neither above nor below anything."""

    low: float
    high: float

    @property
    def is_exact(self) -> bool:
        """Whether the number is known exactly."""
        return self.low == self.high or math.isnan(self.low)

    def is_above(self, threshold: float) -> bool | None:
        return True if self.low > threshold else None if self.high > threshold else False

    def is_below(self, threshold: float) -> bool | None:
        return True if self.high < threshold else None if self.low < threshold else False

    def is_at_least(self, threshold: float) -> bool | None:
        return True if self.low >= threshold else None if self.high >= threshold else False


def exactly(value: float) -> Interval:
    """The interval of a known number."""
    return Interval(value, value)


UNKNOWN = Interval(-math.inf, math.inf)
NOT_A_NUMBER = Interval(math.nan, math.nan)
