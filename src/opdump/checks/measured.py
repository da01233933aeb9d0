"""Measured: the measures of one tensor that conditions use, from statistics if they suffice, otherwise from elements.

    measured.abs_mean(exact=False)     bounds that follow from max, min, avg and l2norm; no file is read
    measured.abs_mean(exact=True)      the number, where there are elements

All computations are in double precision, block by block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from opdump.checks.tensor_checks import TensorStats, stats_of
from opdump.records import StatisticValue

# Interval: what is known of a number, and how it compares with a threshold: yes, no, or None if it may be.


class Interval(NamedTuple):
    """The bounds of a number. Both are NaN for a NaN, which is neither above nor below anything."""

    low: float
    high: float

    @property
    def is_exact(self) -> bool:
        """Whether the number is known exactly."""
        return self.low == self.high or math.isnan(self.low)

    def is_above(self, threshold: float) -> bool | None:
        return True if self.low > threshold else None if self.high > threshold else False

    def is_below(self, threshold: float) -> bool | None:
        return True if self.high < threshold else None if self.low < threshold else False

    def is_at_least(self, threshold: float) -> bool | None:
        return True if self.low >= threshold else None if self.high >= threshold else False


def exactly(value: float) -> Interval:
    """The interval of a known number."""
    return Interval(value, value)


UNKNOWN = Interval(-math.inf, math.inf)
NOT_A_NUMBER = Interval(math.nan, math.nan)


Array = npt.NDArray[Any]

_BLOCK: Final = 2**20
_ROUNDED: Final = 1e-5
"""Statistics of a table have six digits; values computed from several of them may be off by this much."""
_DIGESTS: Final = ("md5", "hash", "xxh3")
_NOTHING: Final[Mapping[str, StatisticValue]] = {}


class Measured:
    """One tensor. `previous` is the same tensor one step before, if a condition needs it."""

    def __init__(
        self,
        count: int,
        statistics: Mapping[str, StatisticValue] = _NOTHING,
        load: Callable[[], Array | None] | None = None,
    ) -> None:
        """`load` returns all elements; None if there are none."""
        self.count: Final = count
        self.previous: Measured | None = None
        self._statistics = statistics
        self._stats: TensorStats | None = None
        self._load = load
        self._array: Array | None = None
        self._known: dict[tuple[Any, ...], Interval] = {}

    @property
    def statistics(self) -> Mapping[str, StatisticValue]:
        return self._statistics

    @statistics.setter
    def statistics(self, statistics: Mapping[str, StatisticValue]) -> None:
        """Set statistics that were not yet known when the elements were checked."""
        self._statistics, self._stats = statistics, None

    @property
    def stats(self) -> TensorStats:
        """Max, min, zeros, NaN and infinities; computed from the elements if the tensor has no statistics."""
        if self._stats is None:
            self._stats = stats_of(self._statistics, self.count) if self._statistics else None
            if self._stats is None:
                self._stats = self._stats_of_elements()
        return self._stats

    @property
    def has_elements(self) -> bool:
        """Whether elements are available."""
        return self.elements() is not None

    def elements(self) -> Array | None:
        """All elements, cached until `release`; None if they are not available."""
        if self._array is None and self._load is not None:
            self._array = self._load()
            if self._array is None:
                self._load = None
        return self._array

    def release(self) -> None:
        """Forget the elements; they are loaded again on demand."""
        self._array = None

    def attach(self, load: Callable[[], Array | None]) -> None:
        """Attach elements that were copied in the meantime."""
        self._load = load

    def drop(self) -> None:
        """Forget the elements permanently, and keep the computed measures."""
        self._array = self._load = None
        self.previous = None

    def max(self) -> Interval:
        return self._extreme("max")

    def min(self) -> Interval:
        return self._extreme("min")

    def mean(self) -> Interval:
        value = self._statistics.get("avg")
        if isinstance(value, (int, float)) and not self._is_rounded:
            return exactly(float(value))
        found = self._of_elements(("mean",), lambda array: sum(float(x.sum()) for x in _blocks(array)) / self.count)
        if found is not None:
            return found
        if isinstance(value, (int, float)):
            return exactly(float(value))
        return Interval(self.min().low, self.max().high)

    def abs_mean(self, *, exact: bool) -> Interval:
        """The mean of absolute values. Without elements: its bounds by max, min, avg and l2norm."""
        if exact or ("abs mean",) in self._known:
            found = self._of_elements(
                ("abs mean",), lambda array: sum(float(np.abs(x).sum()) for x in _blocks(array)) / self.count
            )
            if found is not None:
                return found
        return self._bounds_of_abs_mean()

    def zero_percentage(self) -> Interval:
        zero = self.stats.zero
        if zero is not None and zero >= 0:
            return exactly(100.0 * zero / self.count)
        found = self._of_elements(
            ("zeros",), lambda array: 100.0 * sum(int((x == 0).sum()) for x in _blocks(array)) / self.count
        )
        return found or Interval(0.0, 100.0 if zero is None else 100.0 * (self.count - 1) / self.count)

    def range_percentage(self, start: float, end: float, *, exact: bool) -> Interval:
        """The percentage of elements from `start` to `end`, both included."""

        def share(array: Array) -> float:
            return 100.0 * sum(int(((x >= start) & (x <= end)).sum()) for x in _blocks(array)) / self.count

        if exact or ("range", start, end) in self._known:
            found = self._of_elements(("range", start, end), share)
            if found is not None:
                return found
        low, high = self.min(), self.max()
        if low.low >= start and high.high <= end:
            return exactly(100.0)
        if low.low > end or high.high < start:
            return exactly(0.0)
        inside = any(start <= each.low <= end for each in (low, high) if each.is_exact)
        below = self._beyond(-low.high > -start, low.low >= start, "negative zero count", at_zero=start == 0)
        above = self._beyond(high.low > end, high.high <= end, "positive zero count", at_zero=end == 0)
        least = max(self.count - below.high - above.high, float(inside))
        return Interval(100.0 * least / self.count, 100.0 * (self.count - below.low - above.low) / self.count)

    def _beyond(self, some: bool, none: bool, counted: str, *, at_zero: bool) -> Interval:
        """The number of elements beyond an end of a range. If the end is zero, the counts of positive and negative elements
        answer it.
        """
        if none:
            return exactly(0.0)
        count = self._statistics.get(counted)
        if at_zero and isinstance(count, (int, float)):
            return exactly(float(count))
        return Interval(float(some), float(self.count))

    def max_min(self) -> Interval:
        low, high = self.min(), self.max()
        return Interval(high.low - low.high, high.high - low.low)

    def largest_change(self) -> Interval:
        """The largest absolute difference from the step before; NaN if one value is NaN, or if the sizes differ."""
        if self.is_identical:
            return exactly(0.0)
        return self._compared(("largest",), lambda now, before: float(np.abs(now - before).max()), np.max) or UNKNOWN

    def excess(self, rtol: float, atol: float) -> Interval:
        """The amount by which the largest change exceeds `atol + rtol * |before|`: not above 0 if the tensor did not change."""

        def of_block(now: Array, before: Array) -> float:
            return float((np.abs(now - before) - (atol + rtol * np.abs(before))).max())

        if self.is_identical:
            return exactly(-atol)
        before = self._before()
        if before is None:
            return NOT_A_NUMBER
        # If max and min changed by more than the tolerance, so did some element.
        magnitude = max(abs(before.max().high), abs(before.max().low), abs(before.min().low), abs(before.min().high))
        moved = max(_distance(self.max(), before.max()), _distance(self.min(), before.min()))
        if moved > atol + rtol * magnitude:
            return Interval(moved - atol - rtol * magnitude, math.inf)
        return self._compared(("excess", rtol, atol), of_block, np.max) or UNKNOWN

    def update_ratio(self, epsilon: float, *, exact: bool) -> Interval:
        """The mean absolute change divided by the mean of absolute values before."""
        before = self._before()
        if before is None:
            return NOT_A_NUMBER
        if self.is_identical:
            return exactly(0.0)
        if exact or ("change",) in self._known:
            change = self._compared(("change",), lambda now, then: float(np.abs(now - then).sum()), np.sum)
            if change is not None:
                return exactly(_divided(change.low / self.count, before.abs_mean(exact=True).high + epsilon))
        then, now = before.abs_mean(exact=False), self.abs_mean(exact=False)
        moved = _distance(self.mean(), before.mean())
        return Interval(_divided(moved, then.high + epsilon), _divided(now.high + then.high, then.low + epsilon))

    @property
    def is_identical(self) -> bool:
        """Whether digests prove that it equals its value one step before."""
        if self.previous is None or self.previous.count != self.count:
            return False
        now, then = self._statistics, self.previous.statistics
        return any(name in now and now[name] == then.get(name) for name in _DIGESTS)

    def _before(self) -> Measured | None:
        """The step before, if it has the same size and no NaN: otherwise every difference is NaN."""
        before = self.previous
        return None if before is None or before.count != self.count or before.stats.nan else before

    def _compared(
        self, key: tuple[Any, ...], of_block: Callable[[Array, Array], float], joined: Callable[[list[float]], Any]
    ) -> Interval | None:
        """A comparison of the elements with those of the step before; None if either is unavailable."""
        known = self._known.get(key)
        if known is not None:
            return known
        before = self._before()
        if before is None:
            return NOT_A_NUMBER
        now, then = self.elements(), before.elements()
        if now is None or then is None:
            return None
        if now.shape != then.shape:  # the same elements, read through another view
            now, then = now.reshape(-1), then.reshape(-1)
        with np.errstate(all="ignore"):
            found = exactly(float(joined([of_block(a, b) for a, b in zip(_blocks(now), _blocks(then), strict=True)])))
        self._known[key] = found
        return found

    @property
    def _is_rounded(self) -> bool:
        """Whether the statistics come from a table with six digits: elements are more precise."""
        return type(self._statistics) is dict

    def _extreme(self, name: str) -> Interval:
        stats = self.stats
        value = stats.max if name == "max" else stats.min
        if value is not None and not self._is_rounded:
            return exactly(value)
        found = self._of_elements(
            (name,), lambda array: (max if name == "max" else min)([_extreme_of(x, name) for x in _blocks(array)])
        )
        if found is not None:
            return found
        if value is not None:
            return exactly(value)
        norm = self._statistics.get("l2norm")
        bound = float(norm) * (1 + _ROUNDED) if isinstance(norm, (int, float)) else math.inf
        return Interval(-bound, bound)

    def _bounds_of_abs_mean(self) -> Interval:
        low, high = self.min(), self.max()
        mean = self._statistics.get("avg")
        norm = self._statistics.get("l2norm")
        largest = max(abs(low.low), abs(high.high))
        if isinstance(mean, (int, float)):
            if low.low >= 0 or high.high <= 0:
                return exactly(abs(float(mean)))
            least = abs(float(mean))
        else:
            least = 0.0
        most = largest
        if isinstance(norm, (int, float)):
            norm = float(norm)
            most = min(most, norm / math.sqrt(self.count))
            least = max(least, norm / self.count)
            if 0 < largest < math.inf:
                least = max(least, norm * (norm / largest) / self.count)
        if not largest:
            return exactly(0.0)
        # The largest element contributes at least this much to the mean.
        extremes = [abs(each.low) for each in (low, high) if each.is_exact and math.isfinite(each.low)]
        least = max(least, max(extremes, default=0.0) / self.count)
        return Interval(least * (1 - _ROUNDED), most * (1 + _ROUNDED))

    def _of_elements(self, key: tuple[Any, ...], compute: Callable[[Array], float]) -> Interval | None:
        known = self._known.get(key)
        if known is None:
            array = self.elements()
            if array is None:
                return None
            with np.errstate(all="ignore"):
                self._known[key] = known = exactly(compute(array))
        return known

    def _stats_of_elements(self) -> TensorStats:
        array = self.elements()
        if array is None or not self.count:
            return TensorStats(self.count, None, None, None, None, None)
        nan = inf = zero = 0
        for block in _blocks(array):
            nan += int(np.isnan(block).sum())
            inf += int(np.isinf(block).sum())
            zero += int((block == 0).sum())
        high = max(_extreme_of(block, "max") for block in _blocks(array))
        low = min(_extreme_of(block, "min") for block in _blocks(array))
        return TensorStats(self.count, nan, inf, zero, high, low)


def _blocks(array: Array) -> Iterator[Array]:
    flat = array.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        yield np.asarray(flat[start : start + _BLOCK], np.float64)


def _extreme_of(block: Array, name: str) -> float:
    return float(block.max() if name == "max" else block.min())


def _distance(one: Interval, other: Interval) -> float:
    """The minimum distance between two numbers."""
    return max(one.low - other.high, other.low - one.high, 0.0)


def _divided(number: float, by: float) -> float:
    """Division as in IEEE 754: a change relative to zero is infinite."""
    return number / by if by else math.inf if number else math.nan
