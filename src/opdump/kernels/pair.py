"""Prepares two arrays for the pass over both: splits complex numbers into real ones, and rejects unsupported arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opdump.kernels.addressed import addressed
from opdump.kernels.pair_metrics import PairMetrics, metrics_of_totals
from opdump.kernels.totals_of_pair import PairTotals

_PARTS = {"complex64": "float32", "complex128": "float64"}
Totals = Callable[..., tuple[Any, ...]]


def metrics_of_pair(
    a: NDArray[np.generic],
    b: NDArray[np.generic],
    totals_of: Totals,
    *,
    atol: float,
    rtol: float,
    dtype_a: str | None,
    dtype_b: str | None,
) -> PairMetrics:
    """As `kernels.compare_pair`, with `totals_of` as the pass over the elements."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        raise ValueError(f"tensors of one shape are compared; found {a.shape} and {b.shape}")
    for name, tolerance in (("atol", atol), ("rtol", rtol)):
        if not (math.isfinite(tolerance) and tolerance >= 0):
            raise ValueError(f"{name} is a finite number from 0; found {tolerance}")
    dtypes = dtype_a or a.dtype.name, dtype_b or b.dtype.name
    is_complex = any(dtype in _PARTS for dtype in dtypes)
    sides = []
    for array, dtype in zip((a, b), dtypes, strict=True):
        if is_complex:
            parts = _real_parts(array, dtype)
            sides.append(addressed(parts, parts.dtype.name))
        else:
            sides.append(addressed(array, dtype))
    first, second = sides
    found = totals_of(
        first.address,
        first.code,
        first.strides,
        second.address,
        second.code,
        second.strides,
        first.array.shape,
        float(atol),
        float(rtol),
        not is_complex,
    )
    return metrics_of_totals(
        PairTotals(*found), dtypes=dtypes, shape=a.shape, is_complex=is_complex, atol=float(atol), rtol=float(rtol)
    )


def _real_parts(array: NDArray[np.generic], dtype: str) -> NDArray[np.generic]:
    """Real and imaginary parts along an additional last axis: a view of complex numbers, a copy with zeros for real ones."""
    if dtype not in _PARTS:
        real = addressed(array, dtype).array
        if dtype == "bfloat16":
            real = (real.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
        elif dtype == "bool":
            real = real.view(np.bool_)
        return np.stack([real, np.zeros_like(real)], axis=-1)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    part = np.dtype(_PARTS[dtype])
    if array.size == 0:
        return np.empty((*array.shape, 2), part)
    strides = (*array.strides, part.itemsize)
    base = array.view(np.ndarray)
    parts: NDArray[np.generic] = np.lib.stride_tricks.as_strided(
        base[(slice(0, 1),) * base.ndim].view(part) if base.ndim else base.reshape(1).view(part),
        (*array.shape, 2),
        strides,
        writeable=False,
    )
    return parts
