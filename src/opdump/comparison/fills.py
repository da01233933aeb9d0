"""Fill values of masks: -1e9 in the place of elements that do not count, among numbers of ordinary size.

A fill dominates every sum of squares. Comparisons leave out minus infinity already; a finite fill has the same purpose.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

LEAST_FILL: Final = 1e4
"""A fill is as large as this at least, and so many times as large as anything beside it."""


def fill_of(values: Array) -> float | None:
    """The number that a mask was filled with; None where there is none, as of NaN and of an empty array.

    It has the largest magnitude of what is finite, stands there twice or more, and is far larger than all else.
    """
    if values.dtype.kind != "f" or values.size < 3:
        return None
    most, least = float(values.max()), float(values.min())
    if not (math.isfinite(most) and math.isfinite(least)):
        finite = values[np.isfinite(values)]
        if finite.size < 3:
            return None
        most, least = float(finite.max()), float(finite.min())
    fill = most if most >= -least else least
    if abs(fill) < LEAST_FILL or most == least:
        return None
    others = values[(values != fill) & np.isfinite(values)]
    if values.size - np.count_nonzero(values != fill) < 2 or float(np.abs(others).max(initial=0.0)) * LEAST_FILL > abs(
        fill
    ):
        return None
    return fill


def without_fill(one: Array, other: Array) -> tuple[Array, Array]:
    """Two tensors of one shape without the elements at which both have the fill of the first, in a row; as they are where there is none."""
    fill = fill_of(one)
    if fill is None or other.dtype.kind != "f":
        return one, other
    kept = (one != fill) | (other != fill)
    return (one[kept], other[kept]) if kept.any() else (one, other)


def fill_as_infinity(values: Array) -> Array:
    """The tensor with an infinity for each fill, which is not counted as a number; as it is where there is none."""
    fill = fill_of(values)
    return values if fill is None else np.where(values == fill, math.copysign(math.inf, fill), values)


def is_fill(end: float, other_end: float) -> bool:
    """Whether the one of the largest and the smallest element is a fill, by their sizes."""
    return abs(end) >= LEAST_FILL * max(1.0, abs(other_end))
