"""Max and min as a device computes them, for its statistics files.

A device starts with the first element and replaces it by each later one that compares greater (less). So a NaN at the start
stays, a later NaN is skipped, and the first zero counts among zeros of either sign; integers keep all their digits. See
docs/files.md#the-csv-of-an-operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from opdump.kernels import Summary

_EXACT_IN_FLOAT64 = 2**53
_LOOKED_AT = 1 << 14

Extremes = tuple[float | int, float | int]
"""Max and min. An int if a float64 cannot represent the number."""


def has_device_extremes(summary: Summary, *, is_float: bool) -> bool:
    """Whether max and min of a summary equal those of a device, so that the elements need not be read."""
    if is_float:
        return not summary.nan and summary.max != 0 and summary.min != 0
    return max(abs(summary.max), abs(summary.min)) < _EXACT_IN_FLOAT64


def have_device_extremes(columns: Summary, *, are_floats: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The same for many tensors: the fields are columns of their summaries, (n,), with a flag per tensor for float elements."""
    of_all: Any = columns
    own = (of_all.nan == 0) & (of_all.max != 0) & (of_all.min != 0)
    # An integer is never NaN, so a tensor with NaN has floats.
    exact = np.maximum(np.abs(of_all.max), np.abs(of_all.min)) < _EXACT_IN_FLOAT64
    found: npt.NDArray[np.bool_] = np.where(are_floats, own, exact)
    return found


def device_extremes(array: npt.NDArray[Any], summary: Summary) -> Extremes | None:
    """Max and min of an array of any shape with this summary; None if they equal those of the summary.

    None for no elements. bfloat16 must be widened to float32.
    """
    if not array.size or has_device_extremes(summary, is_float=array.dtype.kind == "f"):
        return None
    if array.dtype.kind != "f":
        return int(array.max()), int(array.min())
    flat = array.reshape(-1)
    if np.isnan(flat[0]):
        return float("nan"), float("nan")
    numbers = flat[~np.isnan(flat)] if summary.nan else flat
    greatest, least = (float(numbers.max()), float(numbers.min())) if summary.nan else (summary.max, summary.min)
    if greatest == 0 or least == 0:
        zero = _first_zero(numbers)
        greatest, least = greatest or zero, least or zero
    return greatest, least


def _first_zero(flat: npt.NDArray[Any]) -> float:
    """The first zero, with its sign; after a rectifier it is usually near the start."""
    for start in range(0, flat.size, _LOOKED_AT):
        part = flat[start : start + _LOOKED_AT]
        places = part == 0
        place = int(places.argmax())
        if places[place]:
            return float(part[place])
    return 0.0
