"""A statistic: the fraction of a tensor's values that are zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from opdump.statistics import Statistic


def zero_fraction(elements: npt.NDArray[Any]) -> float:
    """0 if no value is zero, 1 if all are."""
    return 1 - np.count_nonzero(elements) / elements.size


ZERO_FRACTION = Statistic(heading="Zero Fraction", of_elements=zero_fraction)
