"""The results of one pass over two tensors, from which every metric of a pair follows (`pair_metrics.py`)."""

from __future__ import annotations

from typing import NamedTuple

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
