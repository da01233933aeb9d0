"""Finds tensors of floats whose elements are all zero."""

from __future__ import annotations

from opdump.checks.finding import Thresholds
from opdump.checks.inspected_tensor import INTEGERS
from opdump.checks.tensor_stats import TensorStats


def all_zero(stats: TensorStats, dtype: str, thresholds: Thresholds) -> str:
    """`6 elements`; empty for integers and bool, of which many are rightly zero, for fewer than `zeros` elements,
    and where only a sample is known: the rest may be other.
    """
    if dtype in INTEGERS or dtype == "bool" or stats.count < thresholds.zeros or stats.whole is not None:
        return ""
    return f"{stats.count} elements" if stats.zero == stats.count else ""
