"""Tensors that are hard to summarise, and their float64 statistics."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from opdump.kernels import Summary

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")

Array = NDArray[np.generic]


def as_dtype(values: NDArray[np.float64], dtype: str) -> Array:
    """The values in a floating type; bfloat16 as a uint16 array of its bits, rounded towards zero."""
    with np.errstate(over="ignore"):
        if dtype == "bfloat16":
            return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return values.astype(dtype)


def as_float64(array: Array, dtype: str) -> NDArray[np.float64]:
    values: Array = array
    if dtype == "bfloat16":
        values = (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    elif dtype == "bool":
        values = array.view(np.uint8).astype(np.bool_)
    with np.errstate(invalid="ignore"):  # of a signalling NaN
        return values.astype(np.float64)


def ordinary(dtype: str, count: int) -> Array:
    """Values of both signs, zeros of both signs among the floats, the whole range of the integers."""
    generator = np.random.default_rng(count)
    if dtype == "bool":
        return generator.random(count) < 0.3
    if dtype in INTEGERS:
        limits = np.iinfo(dtype)
        array = generator.integers(limits.min, limits.max, count, dtype=dtype, endpoint=True)
        array[::7] = 0
        return array
    values = generator.standard_normal(count) * 3
    values[::7] = 0.0
    values[3::11] = -0.0
    return as_dtype(values, dtype)


def _with(places: slice, value: float) -> Callable[[str, int], Array]:
    def make(dtype: str, count: int) -> Array:
        values = as_float64(ordinary(dtype, count), dtype)
        values[places] = value
        return as_dtype(values, dtype)

    return make


def _both_infinities(dtype: str, count: int) -> Array:
    values = as_float64(ordinary(dtype, count), dtype)
    values[::5] = math.inf
    values[1::5] = -math.inf
    return as_dtype(values, dtype)


def _everything(dtype: str, count: int) -> Array:
    values = as_float64(_both_infinities(dtype, count), dtype)
    values[2::5] = math.nan
    return as_dtype(values, dtype)


def _denormal(dtype: str, count: int) -> Array:
    smallest = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 2.0**-1074}[dtype]
    values = (np.arange(count) % 9 - 4) * smallest
    return as_dtype(values.astype(np.float64), dtype)


def _huge(dtype: str, count: int) -> Array:
    """Values near the largest number: their squares and the sum of those overflow float64."""
    largest = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}
    values = np.full(count, largest.get(dtype, 1.7976931348623157e308))
    values[1::2] *= 0.5
    return as_dtype(values, dtype)


def _cancelling(dtype: str, count: int) -> Array:
    values = as_float64(ordinary(dtype, count), dtype)
    values[count // 2 : count // 2 * 2] = -values[: count // 2]
    return as_dtype(np.random.default_rng(1).permutation(values), dtype)


FLOAT_CASES: dict[str, Callable[[str, int], Array]] = {
    "ordinary": ordinary,
    "one NaN at the end": _with(slice(-1, None), math.nan),
    "many NaN": _with(slice(None, None, 101), math.nan),
    "all NaN": _with(slice(None), math.nan),
    "Inf": _with(slice(None, None, 3), math.inf),
    "-Inf mask": _with(slice(None, None, 2), -math.inf),
    "-Inf first": _with(slice(0, 1), -math.inf),
    "both Inf": _both_infinities,
    "NaN and both Inf": _everything,
    "all zero": _with(slice(None), 0.0),
    "all negative zero": _with(slice(None), -0.0),
    "denormal": _denormal,
    "huge": _huge,
    "cancelling": _cancelling,
}

# Around the sixteen lanes, a block of 2048, a chunk of 65536, and large enough to be split for threads.
COUNTS = (0, 1, 2, 15, 16, 17, 31, 100, 2047, 2048, 2049, 65536, 65537, 300_001)


# (dtype, case) of each kind of tensor on which native, twin and numpy are compared, at each of the COUNTS.
KINDS = [(dtype, case) for dtype in FLOATS for case in FLOAT_CASES]
KINDS += [(dtype, "ordinary") for dtype in (*INTEGERS, "bool")]


def make(dtype: str, case: str, count: int) -> Array:
    return FLOAT_CASES[case](dtype, count) if count else ordinary(dtype, 0)


def expected(values: NDArray[np.float64]) -> Summary:
    """numpy and math.fsum in float64: counts and extremes exactly, sums as precisely as possible."""
    flat = values.ravel()
    with np.errstate(over="ignore", invalid="ignore"):
        squares = flat * flat
        finite = bool(np.isfinite(flat).all())
        return Summary(
            count=float(flat.size),
            nan=float(np.isnan(flat).sum()),
            positive_inf=float(np.isposinf(flat).sum()),
            negative_inf=float(np.isneginf(flat).sum()),
            zero=float((flat == 0).sum()),
            negative=float((flat < 0).sum()),
            positive=float((flat > 0).sum()),
            max=float(np.max(flat, initial=-math.inf)),
            min=float(np.min(flat, initial=math.inf)),
            sum=_exact_sum(flat) if finite else float(flat.sum()),
            sum_squares=_exact_sum(squares) if np.isfinite(squares).all() else float(squares.sum()),
        )


def _exact_sum(values: NDArray[np.float64]) -> float:
    try:
        return math.fsum(values.tolist())
    except OverflowError:
        return float(values.sum())
