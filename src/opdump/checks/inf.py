"""Any infinity."""

from __future__ import annotations

from opdump.checks.finding import Thresholds
from opdump.checks.tensor_stats import TensorStats


def inf(facts: TensorStats, _dtype: str, _thresholds: Thresholds) -> str:
    """`3 of 6 elements`, `3 of the first 6 of 1000 elements`; empty where there is none, or nothing is known."""
    if not facts.inf:
        return ""
    return f"{facts.inf} of {facts.elements}" if facts.inf > 0 else f"some of {facts.elements}"
