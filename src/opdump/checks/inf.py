"""Finds infinities."""

from __future__ import annotations

from opdump.checks.finding import Thresholds
from opdump.checks.tensor_stats import TensorStats


def inf(stats: TensorStats, _dtype: str, _thresholds: Thresholds) -> str:
    """`3 of 6 elements`, `3 of the first 6 of 1000 elements`; empty where there is none, or nothing is known."""
    if not stats.inf:
        return ""
    return f"{stats.inf} of {stats.elements}" if stats.inf > 0 else f"some of {stats.elements}"
