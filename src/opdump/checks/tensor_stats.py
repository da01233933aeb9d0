"""Statistics of a tensor in the form that the checks need, from a dump or from a summary of its elements."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from opdump.kernels import Summary
from opdump.records import StatisticValue


@dataclass(frozen=True, slots=True)
class TensorStats:
    """Statistics of one tensor. A count is None if the statistics do not have it, and -1 if there are some but their number is
    unknown.
    """

    count: int
    nan: int | None
    inf: int | None
    zero: int | None
    max: float | None
    """The largest element, with NaN and infinities as the writer of the dump counted them."""
    min: float | None
    whole: int | None = None
    """The number of elements of the tensor if the statistics cover only a sample, its first `count` elements."""
    only_negative_inf: bool = False
    """There are infinities, all of them negative, and no NaN, as in an attention mask."""

    @property
    def elements(self) -> str:
        """The elements that the statistics cover: `6 elements`, `the first 6 of 1000 elements`."""
        return f"{self.count} elements" if self.whole is None else f"the first {self.count} of {self.whole} elements"


def stats_of(statistics: Mapping[str, StatisticValue], count: int) -> TensorStats | None:
    """Converts the statistics of a dump; None if none of them is useful.

    Without `nan count`, a NaN shows in max, min, avg or l2norm. Without counts of infinities, they show in max and min, unless a
    NaN hides them.
    """
    maximum, minimum = _number(statistics, "max"), _number(statistics, "min")
    norm = _number(statistics, "l2norm")
    nan, zero = _count(statistics, "nan count"), _count(statistics, "zero count")
    known = [value for value in (maximum, minimum, norm) if value is not None]
    if nan is None and known:
        nan = -1 if any(math.isnan(value) for value in known) else 0
    positive, negative = _count(statistics, "positive inf count"), _count(statistics, "negative inf count")
    inf: int | None
    if positive is not None and negative is not None:
        inf = positive + negative
    else:
        shown = [value for value in (maximum, minimum) if value is not None]
        there = bool(positive) or bool(negative) or any(math.isinf(value) for value in shown)
        inf = -1 if there and count else 0 if len(shown) == 2 else None
    if zero is None:
        zero = _zeros(maximum, minimum, norm, count)
    if nan is None and inf is None and zero is None and not known:
        return None
    lowest = bool(negative) or minimum == -math.inf
    highest = bool(positive) or maximum == math.inf
    only_negative = lowest and not highest and nan == 0 and (positive is not None or maximum is not None)
    return TensorStats(count, nan, inf, zero, maximum, minimum, only_negative_inf=only_negative)


def stats_of_summary(summary: Summary, whole: int | None = None) -> TensorStats:
    """Converts a summary; `whole` is the number of elements of the tensor if only the first ones were summarised."""
    return TensorStats(
        count=int(summary.count),
        nan=int(summary.nan),
        inf=int(summary.positive_inf + summary.negative_inf),
        zero=int(summary.zero),
        max=summary.max,
        min=summary.min,
        whole=whole,
        only_negative_inf=bool(summary.negative_inf and not (summary.positive_inf or summary.nan)),
    )


def _zeros(maximum: float | None, minimum: float | None, norm: float | None, count: int) -> int | None:
    if maximum is not None and minimum is not None:
        return count if maximum == minimum == 0 else -1
    return None if norm is None else count if norm == 0 else -1


def _number(statistics: Mapping[str, StatisticValue], name: str) -> float | None:
    value = statistics.get(name)
    return float(value) if isinstance(value, (int, float)) else None


def _count(statistics: Mapping[str, StatisticValue], name: str) -> int | None:
    value = statistics.get(name)
    if not isinstance(value, (int, float)) or value != value:  # noqa: PLR0124  NaN stands for a count that a writer lacked
        return None
    return int(value)
