"""A metric: the fraction of values that are within one percent of the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def share_within_one_percent(reference: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    """1 if all are, or if there are none; a NaN is never within."""
    if reference.size == 0:
        return 1.0
    a, b = reference.astype(np.float64), other.astype(np.float64)
    return float(np.mean(np.abs(a - b) <= 0.01 * np.abs(a)))
