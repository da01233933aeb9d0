"""A statistic: which part of a tensor's elements is zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from opdump.statistics import Statistic


def zero_fraction(elements: npt.NDArray[Any]) -> float:
    """0 where no element is zero, 1 where all are."""
    return 1 - np.count_nonzero(elements) / elements.size


ZERO_FRACTION = Statistic(heading="Zero Fraction", of_elements=zero_fraction)
