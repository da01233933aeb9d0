"""Differences of two tensors: every metric of a pair, from the totals of one pass over both, and of the statistics of many pairs.

found = compare_summaries(rows_a, rows_b)
np.argsort(-found.l2norm)[:10]      the ten pairs whose norms differ most
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opdump.kernels.summary import SUMMARY_FIELDS, addressed

# The results of one pass over two tensors, from which every metric of a pair follows.

# The orders are those of the enumerations in native/compare.h.
PAIR_SUMS = ("difference", "square", "relative", "first_square", "second_square", "product")
PAIR_MAXIMA = ("difference", "relative", "first", "second")
PAIR_COUNTS = (
    "finite",
    "same_nonfinite",
    "nan_first",
    "nan_second",
    "inf_first",
    "inf_second",
    "different",
    "out_of_tolerance",
    "sign_flips",
    "from_zero",
    "argmax_flips",
    "first_out",
)


class PairTotals(NamedTuple):
    """The totals for two tensors a and b of one shape, each element cast to float64 first.

    sums       of PAIR_SUMS, over the elements that are finite in both: |a - b|, (a - b)^2, |a - b| / |a| where a is not 0, a^2, b^2, ab
    maxima     of PAIR_MAXIMA, over the same: |a - b|, |a - b| / |a|, |a|, |b|; 0 without elements
    counts     of PAIR_COUNTS; first_out is the index of the first element out of tolerance, -1 if there is none
    distances  how many elements are 0, 1, 2 to 3, 4 to 7, ... representable numbers apart: 65 counts; none for two types
    worst      (axis, index, sum) of the largest sum of (a - b)^2 along each axis; none without a difference
    """

    sums: list[float]
    maxima: list[float]
    counts: list[int]
    distances: list[int]
    worst: list[tuple[int, int, float]]


# The difference between two tensors: every metric of a pair, from the totals of one pass over both.


@dataclass(frozen=True, slots=True)
class WorstChannel:
    """The index along one axis with the largest part of the squared difference.

    The elements are `a[..., index, ...]` at `axis`; `share`, between 0 and 1, is their sum of |a - b|^2 divided by the sum over
    all elements.
    """

    axis: int
    index: int
    share: float


@dataclass(frozen=True, slots=True)
class PairMetrics:
    """How a tensor b differs from its reference a. Floats are float64, in the unit of the elements unless stated otherwise.

    Each element is cast to float64 first; if both are int64 or uint64, the difference is computed before the cast. A complex
    number counts as two real ones. NaN at the same index in both, and the same infinity, are not a difference. If only one tensor
    has a NaN or an infinity at an index, the element is `different` and out of tolerance, and appears in no other metric except
    `first_bad` and the counts of its kind. All other metrics cover the elements that are finite in both (`finite`). Without such
    elements they have the values for equal tensors, or NaN if elements differ. Differences and squares too large for float64 are
    Inf, and quotients of them may be NaN; squares too small are 0.
    """

    dtype_a: str
    """Element type as numpy and ml_dtypes name it. If the types differ, they are compared as float64."""
    dtype_b: str
    shape: tuple[int, ...]
    count: int
    """Number of real values in each tensor: twice the number of complex elements."""
    finite: int
    """Finite in both."""
    same_nonfinite: int
    """NaN, Inf or -Inf in both."""
    different: int
    """Neither the same number nor NaN in both. 0.0 and -0.0 are the same."""
    out_of_tolerance: int
    """|a - b| > atol + rtol * |a|."""
    atol: float
    rtol: float
    first_bad: tuple[int, ...] | None
    """Index of the first element out of tolerance, in C order; None if there is none, `()` for a scalar."""
    cosine: float
    """Cosine of the angle between the two as vectors, from -1 to 1; 1 if both are zero, 0 if one is."""
    max_absolute: float
    """max |a - b|."""
    mean_absolute: float
    """The mean of |a - b|."""
    max_relative: float
    """max |a - b| / |a|; 0 for elements where both are 0. Elements where only a is 0 are not included, and are counted in
    `from_zero`.
    """
    mean_relative: float
    """The mean of the same quotient, without the elements in `from_zero`."""
    from_zero: int
    """a = 0 and b is not."""
    relative_l2: float
    """||a - b|| / ||a||; Inf if a is zero and b is not."""
    rmse: float
    """Root mean square of a - b."""
    snr_db: float
    """10 log10(||a||^2 / ||a - b||^2) in decibels; Inf without a difference, -Inf if a is zero and b is not."""
    rms_a: float
    """Root mean square of a."""
    peak_a: float
    """max |a|."""
    peak_b: float
    ulps: tuple[int, ...] | None
    """The number of elements whose distance is 0, 1, 2 to 3, 4 to 7, ... representable numbers of their type (units in the last
    place; for integers the difference), up to the last nonzero count. None for two types.
    """
    sign_flips: int
    """Number of elements of which one is below zero and the other above."""
    argmax_flips: int | None
    """Number of rows along the last axis whose largest element (the first of equal ones; the first NaN, if there is one) has
    another index. None for complex numbers. Includes infinities and NaN.
    """
    worst_channels: tuple[WorstChannel, ...]
    """One for each axis of 2 to 2^20 indices, if at least two axes have more than one index and there is a difference."""
    nan_a: int
    """Number of NaN in a where b has none."""
    nan_b: int
    inf_a: int
    """Number of Inf or -Inf in a where b does not have the same."""
    inf_b: int


def metrics_of_totals(
    totals: PairTotals,
    *,
    dtypes: tuple[str, str],
    shape: tuple[int, ...],
    is_complex: bool,
    atol: float,
    rtol: float,
) -> PairMetrics:
    """The metrics for these totals. The totals of complex numbers have an additional axis, of real and imaginary parts."""
    sums = dict(zip(PAIR_SUMS, totals.sums, strict=True))
    maxima = dict(zip(PAIR_MAXIMA, totals.maxima, strict=True))
    counts = dict(zip(PAIR_COUNTS, totals.counts, strict=True))
    finite, square, first_square = counts["finite"], sums["square"], sums["first_square"]
    unknown = finite == 0 and counts["different"] > 0

    def known(value: float) -> float:
        return math.nan if unknown else value

    def mean(value: float, elements: int = finite) -> float:
        return known(value / elements if elements else 0.0)

    first_out = counts["first_out"]
    return PairMetrics(
        dtype_a=dtypes[0],
        dtype_b=dtypes[1],
        shape=shape,
        count=math.prod(shape) * (2 if is_complex else 1),
        finite=finite,
        same_nonfinite=counts["same_nonfinite"],
        different=counts["different"],
        out_of_tolerance=counts["out_of_tolerance"],
        atol=atol,
        rtol=rtol,
        first_bad=None if first_out < 0 else _index(first_out // 2 if is_complex else first_out, shape),
        cosine=known(_cosine(sums["product"], first_square, sums["second_square"], has_difference=square != 0)),
        max_absolute=known(maxima["difference"]),
        mean_absolute=mean(sums["difference"]),
        max_relative=known(maxima["relative"]),
        mean_relative=mean(sums["relative"], finite - counts["from_zero"]),
        from_zero=counts["from_zero"],
        relative_l2=known(_ratio(math.sqrt(square), math.sqrt(first_square))),
        rmse=math.sqrt(mean(square)),
        snr_db=known(_decibels(first_square, square)),
        rms_a=math.sqrt(mean(first_square)),
        peak_a=known(maxima["first"]),
        peak_b=known(maxima["second"]),
        ulps=_without_last_zeros(totals.distances) if totals.distances else None,
        sign_flips=counts["sign_flips"],
        argmax_flips=None if is_complex else counts["argmax_flips"],
        worst_channels=tuple(
            WorstChannel(axis, index, _within(part / square, 0.0, 1.0))
            for axis, index, part in totals.worst
            if axis < len(shape)
        ),
        nan_a=counts["nan_first"],
        nan_b=counts["nan_second"],
        inf_a=counts["inf_first"],
        inf_b=counts["inf_second"],
    )


def _cosine(product: float, first_square: float, second_square: float, *, has_difference: bool) -> float:
    if not has_difference:
        return 1.0
    norms = math.sqrt(first_square) * math.sqrt(second_square)
    return 0.0 if norms == 0 else _within(product / norms, -1.0, 1.0)


def _within(value: float, least: float, most: float) -> float:
    """Clamp rounding errors beyond a limit; NaN stays NaN."""
    return most if value > most else max(value, least)


def _ratio(one: float, other: float) -> float:
    if one == 0:
        return 0.0
    return math.inf if other == 0 else one / other


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    return -math.inf if signal == 0 else 10 * (math.log10(signal) - math.log10(noise))


def _index(place: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index: list[int] = []
    for size in reversed(shape):
        place, at = divmod(place, size)
        index.append(at)
    return tuple(reversed(index))


def _without_last_zeros(counts: list[int]) -> tuple[int, ...]:
    last = max((place for place, count in enumerate(counts) if count), default=-1)
    return tuple(counts[: last + 1])


# Prepares two arrays for the pass over both: splits complex numbers into real ones, and rejects unsupported arrays.

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
        raise ValueError(f"expected two tensors of the same shape; found {a.shape} and {b.shape}")
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


# The differences between the statistics of many pairs of tensors: rows of summaries, all at once.

COUNTED = SUMMARY_FIELDS[:7]


@dataclass(frozen=True, slots=True)
class SummaryDifferences:
    """For each pair of rows, in order: relative differences |a - b| / |a|, and differences b - a of the counts.

    A relative difference is 0 if both numbers are equal, the same infinity or NaN. It is Inf if only a is 0, or if one of the two
    is NaN or an infinity that the other is not. For tensors without elements avg is NaN. Arrays have one dimension.
    """

    max: NDArray[np.float64]
    min: NDArray[np.float64]
    avg: NDArray[np.float64]
    l2norm: NDArray[np.float64]
    counts: NDArray[np.int64]
    """(n, 7): count, nan, positive_inf, negative_inf, zero, negative, positive (COUNTED)."""


def compare_summaries(rows_a: NDArray[np.float64], rows_b: NDArray[np.float64]) -> SummaryDifferences:
    """Compare rows of summaries, (n, 11) each, columns as in SUMMARY_FIELDS. Raises ValueError for other shapes."""
    if rows_a.shape != rows_b.shape or rows_a.ndim != 2 or rows_a.shape[1] != len(SUMMARY_FIELDS):
        raise ValueError(
            f"rows have {len(SUMMARY_FIELDS)} numbers, as many rows on both sides; found {rows_a.shape} and {rows_b.shape}"
        )
    a = {field: rows_a[:, at] for at, field in enumerate(SUMMARY_FIELDS)}
    b = {field: rows_b[:, at] for at, field in enumerate(SUMMARY_FIELDS)}
    with np.errstate(all="ignore"):
        return SummaryDifferences(
            max=_relative(a["max"], b["max"]),
            min=_relative(a["min"], b["min"]),
            avg=_relative(a["sum"] / a["count"], b["sum"] / b["count"]),
            l2norm=_relative(np.sqrt(a["sum_squares"]), np.sqrt(b["sum_squares"])),
            counts=(rows_b[:, : len(COUNTED)] - rows_a[:, : len(COUNTED)]).astype(np.int64),
        )


def _relative(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    found = np.abs(a - b) / np.abs(a)
    found[~(np.isfinite(a) & np.isfinite(b))] = np.inf
    found[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
    return found
