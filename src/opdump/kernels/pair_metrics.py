"""How much two tensors differ: every metric of a pair, from the totals of one pass over both."""

from __future__ import annotations

import math
from dataclasses import dataclass

from opdump.kernels.totals_of_pair import PAIR_COUNTS, PAIR_MAXIMA, PAIR_SUMS, PairTotals


@dataclass(frozen=True, slots=True)
class WorstChannel:
    """The index along one axis whose elements have the largest part of the squared difference.

    `a[..., index, ...]` at `axis`; `share` is between 0 and 1: its sum of |a - b|^2 by that of all elements.
    """

    axis: int
    index: int
    share: float


@dataclass(frozen=True, slots=True)
class PairMetrics:
    """How much a tensor b differs from a, its reference; floats are float64, in the unit of the elements where none is named.

    Each element is cast to float64 first; of int64 and uint64 on both sides the difference is taken before. Complex numbers are
    compared as twice as many real ones. NaN at the same place in both, and the same infinity, are no difference. Where one tensor has
    a NaN or an infinity that the other has not, the element is `different` and out of tolerance, and is in no other metric than these,
    `first_bad` and the counts of its kind. All others are over the elements that are finite in both (`finite`), and of no elements they
    are those of equal tensors; but where elements differ and none is finite in both, they are NaN. Differences and squares too
    large for float64 are Inf, and what is divided by them may be NaN; squares too small are 0.
    """

    dtype_a: str
    """Element type as numpy and ml_dtypes name it. Two types are compared as float64, without a word more."""
    dtype_b: str
    shape: tuple[int, ...]
    count: int
    """Real numbers in each tensor: of complex elements twice their number."""
    finite: int
    """Finite in both."""
    same_nonfinite: int
    """NaN, Inf or -Inf in both."""
    different: int
    """Not the same number, nor NaN in both. 0.0 and -0.0 are the same."""
    out_of_tolerance: int
    """|a - b| > atol + rtol * |a|."""
    atol: float
    rtol: float
    first_bad: tuple[int, ...] | None
    """Index of the first element out of tolerance, in the order of a C array; None where there is none, `()` is that of a scalar."""
    cosine: float
    """Of the angle between the two as vectors, from -1 to 1; 1 where both are zero, 0 where one is."""
    max_absolute: float
    """max |a - b|."""
    mean_absolute: float
    """The mean of |a - b|."""
    max_relative: float
    """max |a - b| / |a|; 0 where both are 0. Where a alone is 0 there is none, and `from_zero` counts the element."""
    mean_relative: float
    """The mean of the same, without the elements of `from_zero`."""
    from_zero: int
    """a = 0 and b is not."""
    relative_l2: float
    """||a - b|| / ||a||; Inf where a is zero and b is not."""
    rmse: float
    """Root of the mean of (a - b)^2."""
    snr_db: float
    """10 log10(||a||^2 / ||a - b||^2) in decibels; Inf without a difference, -Inf where a is zero and b is not."""
    rms_a: float
    """Root of the mean of a^2."""
    peak_a: float
    """max |a|."""
    peak_b: float
    ulps: tuple[int, ...] | None
    """How many elements are 0, 1, 2 to 3, 4 to 7, ... numbers of their type apart (units in the last place; of integers their
    difference), up to the last that is not 0. None for two types."""
    sign_flips: int
    """One is below zero, the other above."""
    argmax_flips: int | None
    """Rows along the last axis whose largest element (the first of equal ones; the first NaN, where there is one) is at another
    index. None for complex numbers. Infinities and NaN take part."""
    worst_channels: tuple[WorstChannel, ...]
    """One for each axis of 2 to 2^20 indices, where there are two axes or more of more than one index, and a difference."""
    nan_a: int
    """NaN in a where b has none."""
    nan_b: int
    inf_a: int
    """Inf or -Inf in a where b has not the same."""
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
    """The metrics that follow. The totals of complex numbers have one more axis, of real and imaginary parts."""
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
    """What rounding took beyond a limit is the limit; NaN stays."""
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
