"""A check: a tensor whose elements are all the same number, and not zero."""

from __future__ import annotations

from opdump.checks import TensorStats, Thresholds


def all_equal(facts: TensorStats, _dtype: str, thresholds: Thresholds) -> str:
    """`5 times 0.25`; empty where elements differ, where they are zero and where there are too few."""
    if facts.max is None or facts.max != facts.min or facts.max == 0 or facts.count < max(thresholds.zeros, 4):
        return ""
    return f"{facts.count} times {facts.max:g}"
