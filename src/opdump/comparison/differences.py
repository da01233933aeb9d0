"""How far two tensors are apart, in units of what their element type can tell apart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.fills import LEAST_FILL, without_fill
from opdump.kernels import compare_pair

Array = NDArray[Any]

_EPSILONS: Final = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "complex64": 2.0**-23,
    "complex128": 2.0**-52,
    "float8_e4m3fn": 2.0**-3,
    "float8_e5m2": 2.0**-2,
}


def epsilon_of(dtype: str) -> float:
    """The distance of 1 to the next number of the type; 0 for types that are exact."""
    return _EPSILONS.get(dtype, 0.0)


_LARGEST: Final = {
    "float64": 1.7976931348623157e308,
    "float32": 3.4028234663852886e38,
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "complex64": 3.4028234663852886e38,
    "complex128": 1.7976931348623157e308,
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
}


def largest_of(dtype: str) -> float:
    """The largest finite number of the type; infinite for types that are exact."""
    return _LARGEST.get(dtype, math.inf)


@dataclass(frozen=True, slots=True)
class Difference:
    """`relative` is the root mean square of the difference over that of the first; infinite where that is zero, where one has NaN
    or an infinity and the other has not, and for other shapes. `peak` is the largest difference over the largest element.
    """

    relative: float
    peak: float
    absolute: float
    """The root mean square of the difference."""

    def __bool__(self) -> bool:
        return self.relative > 0


_SQUARES_LEAST: Final = 1e-150
_SQUARES_MOST: Final = 1e150
"""Sums of squares of numbers in between are numbers of float64."""
_NONE: Final = Difference(0.0, 0.0, 0.0)
_WHOLLY: Final = Difference(math.inf, math.inf, math.inf)


def difference(one: Array, other: Array) -> Difference:
    """How far `other` is from `one`. NaN at the same place, the same infinity, and the same fill of a mask are no difference, and add nothing
    to the size of either.
    """
    if one.shape != other.shape:
        return _WHOLLY
    one, other = comparable(one), comparable(other)
    found = compare_pair(one, other)
    if not found.different:
        return _NONE
    if found.peak_a >= LEAST_FILL and found.different < one.size:
        kept = without_fill(one, other)
        found = found if kept[0] is one else compare_pair(*kept)
        one, other = kept
    if one.dtype.kind in "biu" and other.dtype.kind in "biu":
        share = found.different / one.size
        return Difference(share, 1.0, share)
    if found.nan_a or found.nan_b or found.inf_a or found.inf_b:
        return _WHOLLY
    top = max(found.peak_a, found.peak_b)
    unit = 1.0
    if not _SQUARES_LEAST < found.max_absolute <= top < _SQUARES_MOST:
        # Squares leave the range of float64, or differences do: in units of the largest element they do not.
        unit = top
        found = compare_pair(one / unit, other / unit)
    parts = 2 if "c" in (one.dtype.kind, other.dtype.kind) else 1
    return Difference(
        found.relative_l2 or math.ulp(0.0),  # of what lies too far below the largest element
        found.max_absolute / found.peak_a if found.peak_a else math.inf,
        found.rmse * unit * math.sqrt(parts),
    )


def comparable(array: Array) -> Array:
    """The array in a type that the kernels read, which is its own for all types of numpy."""
    return array if array.dtype.kind in "biufc" and array.dtype.name != "float128" else array.astype(np.float64)


def unshaped_difference(one: Array, other: Array) -> Difference:
    """The same where the shape alone does not matter: of as many elements, in row-major order."""
    return difference(one, other.reshape(one.shape) if one.size == other.size else other)


def is_permutation(one: Array, other: Array) -> bool:
    """Whether both hold the same elements in another order."""
    return (
        one.size == other.size
        and one.dtype == other.dtype
        and np.array_equal(np.sort(one, axis=None), np.sort(other, axis=None))
    )


def equal_elements(one: Array, other: Array) -> NDArray[np.bool_]:
    """Which elements are the same, NaN being the same as NaN."""
    equal = np.asarray(one == other)
    if one.dtype.kind in "fc" and other.dtype.kind in "fc":
        equal = equal | (np.isnan(one) & np.isnan(other))
    return equal


def same_bits(one: Array, other: Array) -> bool:
    """Whether both hold the same elements, NaN included."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.kind in "fc":
        return bool(np.array_equal(one, other, equal_nan=True))
    return bool(np.array_equal(one, other))
