"""A check: a tensor whose values are all the same nonzero number."""

from __future__ import annotations

from opdump.checks import TensorStats, Thresholds


def all_equal(facts: TensorStats, _dtype: str, thresholds: Thresholds) -> str:
    """`5 times 0.25`; empty if values differ or are zero, or if there are too few."""
    if facts.max is None or facts.max != facts.min or facts.max == 0 or facts.count < max(thresholds.zeros, 4):
        return ""
    return f"{facts.count} times {facts.max:g}"
