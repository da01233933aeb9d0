"""How far two tensors are apart, in units of what their element type can tell apart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

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


_NONE: Final = Difference(0.0, 0.0, 0.0)
_WHOLLY: Final = Difference(math.inf, math.inf, math.inf)


def difference(one: Array, other: Array) -> Difference:
    """How far `other` is from `one`. NaN at the same place, and the same infinity, are no difference."""
    if one.shape != other.shape:
        return _WHOLLY
    if one.size == 0:
        return _NONE
    if one.dtype.kind in "biu" and other.dtype.kind in "biu":
        unequal = int(np.count_nonzero(one != other))
        share = unequal / one.size
        return Difference(share, float(unequal > 0), share) if unequal else _NONE
    kind = np.complex128 if "c" in (one.dtype.kind, other.dtype.kind) else np.float64
    x, y = one.astype(kind, copy=False), other.astype(kind, copy=False)
    with np.errstate(all="ignore"):
        apart = np.abs(x - y)
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        apart = np.where(same, 0.0, apart)
        if not np.all(np.isfinite(apart)):
            return _WHOLLY
        size = np.abs(np.where(np.isfinite(x), x, 0.0))
        absolute, scale = _rms(apart), _rms(size)
        if absolute == 0:
            return _NONE
        peak, top = float(apart.max()), float(size.max())
    return Difference(absolute / scale if scale else math.inf, peak / top if top else math.inf, absolute)


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


def _rms(values: Array) -> float:
    top = float(values.max()) if values.size else 0.0
    if top == 0 or not math.isfinite(top):
        return top
    return top * math.sqrt(float(np.mean(np.square(values / top))))
