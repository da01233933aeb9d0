"""The difference between two tensors: every metric of a pair, from the totals of one pass over both."""

from __future__ import annotations

import math
from dataclasses import dataclass

from opdump.kernels.totals_of_pair import PAIR_COUNTS, PAIR_MAXIMA, PAIR_SUMS, PairTotals


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
