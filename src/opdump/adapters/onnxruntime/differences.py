"""Measures the difference between two answers of a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np


def largest_difference(one: Sequence[Any], other: Sequence[Any]) -> float:
    """The largest absolute difference between corresponding elements of two answers.

    NaN equals NaN, and an infinity equals itself. The result is infinite for different kinds, shapes or types, for different text, and for
    NaN or an infinity that meets another number. Numbers are compared in float64. The result is 0 for answers without elements.
    """
    if len(one) != len(other):
        return math.inf
    return max((_difference(a, b) for a, b in zip(one, other, strict=True)), default=0.0)


def same_bits(one: Any, other: Any) -> bool:
    """Whether two answers are equal bit for bit, including their kinds, types and shapes."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return bool((one == other).all() if one.dtype == object else one.tobytes() == other.tobytes())
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(same_bits(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return bool(list(one) == list(other) and same_bits(list(one.values()), list(other.values())))
    if isinstance(one, float) and isinstance(other, float):
        return bool(np.float64(one).tobytes() == np.float64(other).tobytes())
    if type(one) is not type(other):
        return False
    if type(one).__name__ == "SparseTensor":
        return same_bits([_of_sparse(one)], [_of_sparse(other)])
    return bool(one == other)


def _of_sparse(tensor: Any) -> tuple[Any, ...]:
    return tensor.dense_shape(), tensor.values()


def _difference(one: Any, other: Any) -> float:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and one.dtype.kind in "biufc":
        return _difference_of_arrays(one, other)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return largest_difference(one, other)
    if isinstance(one, dict) and isinstance(other, dict) and list(one) == list(other):
        return largest_difference(list(one.values()), list(other.values()))
    if isinstance(one, float) and isinstance(other, float):
        return _difference_of_arrays(np.float64(one).reshape(1), np.float64(other).reshape(1))
    return 0.0 if same_bits(one, other) else math.inf


def _difference_of_arrays(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    if one.dtype != other.dtype or one.shape != other.shape:
        return math.inf
    if one.size == 0:
        return 0.0
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    a, b = one.astype(wide), other.astype(wide)
    equal = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        apart = np.where(equal, 0.0, np.abs(a - b))
    return float(np.where(np.isnan(apart), math.inf, apart).max())
