"""The checks of one tensor by its statistics, what they look at, and the findings they lead to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from opdump.kernels import Summary
from opdump.records import IO, StatisticValue

# A finding of a check, about one tensor or one operator of a dump.

CheckName = str
"""`nan`, `inf`, `overflow`, `all zero`, `extreme`, `killed` (inputs with NaN or infinities, finite outputs), or the name of a
check that an installed package adds.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding. `step` and `rank` are None if the dump does not have them; `slot` is None for a whole operator.

    `origin`: the first operator of the step with NaN or infinities in its outputs and none in its inputs. `inherited`: the
    operator read NaN or infinities, so its own follow from them; this includes a parameter that has contained some since an
    earlier step.
    """

    check: CheckName
    text: str
    op_name: str
    op_type: str = ""
    net_name: str = ""
    rank: int | None = None
    step: int | None = None
    order: int = 0
    occurrence: int = 0
    source: str = ""
    """The line of the program, `train.py:175`; empty if unknown."""
    io: IO | None = None
    slot: int | None = None
    argument: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    status: int = 0
    """The status word of an overflow."""
    file: str = ""
    """The overflow file; empty for a finding in the values."""
    origin: bool = False
    inherited: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The limits of the checks. `extreme` is a fraction of the largest number of the element type; `zeros` is the minimum number
    of elements of a tensor that is reported as all zero.
    """

    extreme: float = 0.9
    zeros: int = 2

    def __post_init__(self) -> None:
        if not 0 < self.extreme <= 1:
            raise ValueError(
                f"extreme is {self.extreme}; expected a fraction of the type's largest number, above 0 and up to 1"
            )
        if self.zeros < 1:
            raise ValueError(f"zeros is {self.zeros}; expected a number of elements, 1 or more")


# An input or output of an operator, in the form that the overflow checks take.

# All types that a summary supports, and the 8-bit floats.
FLOATS: Final = frozenset({"float16", "bfloat16", "float32", "float64"})
SIGNED: Final = frozenset({"int8", "int16", "int32", "int64"})
UNSIGNED: Final = frozenset({"uint8", "uint16", "uint32", "uint64"})
INTEGERS: Final = SIGNED | UNSIGNED
_EXACT: Final = INTEGERS | {"bool"}


# Created for every tensor of every operator: a frozen dataclass would take four times as long.
class InspectedTensor(NamedTuple):
    """One tensor: type, shape, summary, and access to its elements for the few checks that need them.

    `dtype` is spelled as in a record (`float16`, `bfloat16`, `int8`). `summary` is None for types without one (complex numbers,
    8-bit floats). `elements` returns an array of `shape`, with bfloat16 and 8-bit floats widened to float32 as in a payload, or
    None if they are not available. It is called while the elements are unchanged: for an input, before the operator overwrites
    it.
    """

    dtype: str
    shape: tuple[int, ...]
    argument: str = ""
    """Its name in the operator's schema (`self`, `tensors[2]`); empty if unknown."""
    summary: Summary | None = None
    elements: Callable[[], npt.NDArray[Any]] | None = None

    @property
    def is_exact(self) -> bool:
        """Whether its type has no NaN and no infinity: integers and bool."""
        return self.dtype in _EXACT

    @property
    def is_empty(self) -> bool:
        return 0 in self.shape

    @property
    def cannot_have_overflowed(self) -> bool:
        """Whether it cannot be the result of an overflow: finite floats, or a type that cannot overflow."""
        summary = self.summary
        if self.dtype in FLOATS and summary is not None:
            return not (summary.nan or summary.positive_inf or summary.negative_inf)
        return self.dtype == "bool"

    def count_of_non_finite(self) -> tuple[int, int] | None:
        """The numbers of NaN and infinite elements; None if they are unknown."""
        if self.summary is not None:
            return int(self.summary.nan), int(self.summary.positive_inf + self.summary.negative_inf)
        if self.is_exact or self.is_empty:
            return 0, 0
        if self.elements is None:
            return None
        array = self.elements()
        if not np.issubdtype(array.dtype, np.inexact):
            return None
        return int(np.count_nonzero(np.isnan(array))), int(np.count_nonzero(np.isinf(array)))

    @property
    def is_finite(self) -> bool | None:
        """Whether every element is finite; None if unknown."""
        summary = self.summary
        if summary is not None:  # the one case on the hot path
            return not (summary.nan or summary.positive_inf or summary.negative_inf)
        found = self.count_of_non_finite()
        return None if found is None else found == (0, 0)


# Statistics of a tensor in the form that the checks need, from a dump or from a summary of its elements.


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
    maximum, minimum, norm = (_number(statistics, name) for name in ("max", "min", "l2norm"))
    nan, zero = _count(statistics, "nan count"), _count(statistics, "zero count")
    known = [value for value in (maximum, minimum, norm) if value is not None]
    if nan is None and known:
        nan = -1 if any(math.isnan(value) for value in known) else 0
    inf, only_negative = _infinities(statistics, maximum, minimum, count)
    if zero is None:
        zero = _zeros(maximum, minimum, norm, count)
    if nan is None and inf is None and zero is None and not known:
        return None
    return TensorStats(count, nan, inf, zero, maximum, minimum, only_negative_inf=only_negative and nan == 0)


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


def _infinities(
    statistics: Mapping[str, StatisticValue], maximum: float | None, minimum: float | None, count: int
) -> tuple[int | None, bool]:
    """The number of infinities as in `TensorStats`, and whether there are only negative ones."""
    positive, negative = _count(statistics, "positive inf count"), _count(statistics, "negative inf count")
    lowest = bool(negative) or minimum == -math.inf
    highest = bool(positive) or maximum == math.inf
    only_negative = lowest and not highest and (positive is not None or maximum is not None)
    if positive is not None and negative is not None:
        return positive + negative, only_negative
    if count and (lowest or highest or minimum == math.inf or maximum == -math.inf):
        return -1, only_negative
    return None if maximum is None or minimum is None else 0, only_negative


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


# The checks: NaN, infinities, floats that are all zero, floats near the largest of their type.

LARGEST: Final[Mapping[str, float]] = {
    "float64": 1.7976931348623157e308,
    "float32": 3.4028234663852886e38,
    "bfloat16": 3.3895313892515355e38,
    "float16": 65504.0,
    "float8_e5m2": 57344.0,
    "float8_e4m3fn": 448.0,
}


def nan(stats: TensorStats, _dtype: str, _thresholds: Thresholds) -> str:
    """`3 of 6 elements`, `3 of the first 6 of 1000 elements`; empty if there are none, or if nothing is known."""
    return _share(stats.nan, stats)


def inf(stats: TensorStats, _dtype: str, _thresholds: Thresholds) -> str:
    """The same for infinities."""
    return _share(stats.inf, stats)


def all_zero(stats: TensorStats, dtype: str, thresholds: Thresholds) -> str:
    """`6 elements`. Empty for integers and bool, which are often zero for good reason, for fewer than `zeros` elements, and for a
    sample, because the rest is unknown.
    """
    if dtype in INTEGERS or dtype == "bool" or stats.count < thresholds.zeros or stats.whole is not None:
        return ""
    return f"{stats.count} elements" if stats.zero == stats.count else ""


def extreme(stats: TensorStats, dtype: str, thresholds: Thresholds) -> str:
    """`60000, the largest float16 is 65504`: the next operation may overflow. Empty for other types, and for extremes that are
    not finite, which other checks report.
    """
    largest = LARGEST.get(dtype)
    if largest is None:
        return ""
    for value in (stats.max, stats.min):
        if value is not None and math.isfinite(value) and abs(value) >= thresholds.extreme * largest:
            return f"{value:g}, the largest {dtype} is {largest:g}"
    return ""


def _share(count: int | None, stats: TensorStats) -> str:
    if not count:
        return ""
    return f"{count} of {stats.elements}" if count > 0 else f"some of {stats.elements}"
