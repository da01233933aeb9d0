"""SummaryStatistics: the named statistics, read off one summary."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from opdump.records import Statistics, StatisticValue, format_statistic
from opdump.statistics.categories import canonical_category
from opdump.statistics.device_extremes import Extremes

if TYPE_CHECKING:
    from opdump.kernels import Summary


def _average(summary: Summary) -> float:
    return summary.sum / summary.count if summary.count else math.nan


def _l2norm(summary: Summary) -> float:
    return math.sqrt(summary.sum_squares)


_FROM_SUMMARY: Final[Mapping[str, Callable[[Summary], StatisticValue]]] = MappingProxyType(
    {
        "max": lambda summary: summary.max,
        "min": lambda summary: summary.min,
        "avg": _average,
        "count": lambda summary: int(summary.count),
        "negative zero count": lambda summary: int(summary.negative),
        "positive zero count": lambda summary: int(summary.positive),
        "nan count": lambda summary: int(summary.nan),
        "negative inf count": lambda summary: int(summary.negative_inf),
        "positive inf count": lambda summary: int(summary.positive_inf),
        "zero count": lambda summary: int(summary.zero),
        "l2norm": _l2norm,
    }
)

_SHOWN: Final = ("max", "min", "avg", "l2norm", "count")
_SHOWN_IF_ANY: Final = ("nan count", "negative inf count", "positive inf count")
_NO_DIGESTS: Final[Mapping[str, str]] = MappingProxyType({})


class SummaryStatistics(Statistics):
    """Every statistic that a summary (and the digests, if any) can give, by the config's spelling.

    Nothing is computed before it is asked for. `avg` and `l2norm` are in double precision and let NaN and Inf through;
    of no elements `avg` is NaN and `l2norm` 0. Two mappings with NaN in the same places are equal.
    `digests` has the keys `md5` and `hash`, whichever were taken.
    """

    __slots__ = ("digests", "extremes", "summary")

    def __init__(
        self, summary: Summary, digests: Mapping[str, str] | None = None, extremes: Extremes | None = None
    ) -> None:
        """`extremes` are max and min by the rules of a device where they differ; they are no part of the mapping."""
        self.summary: Final = summary
        self.extremes: Final = extremes
        self.digests: Final[Mapping[str, str]] = (
            {canonical_category(name): value for name, value in digests.items()} if digests else _NO_DIGESTS
        )

    def __getitem__(self, name: str, /) -> Any:
        kind = canonical_category(name)
        compute = _FROM_SUMMARY.get(kind)
        return self.digests[kind] if compute is None else compute(self.summary)

    def __iter__(self) -> Iterator[str]:
        yield from _FROM_SUMMARY
        yield from self.digests

    def __len__(self) -> int:
        return len(_FROM_SUMMARY) + len(self.digests)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        return self.keys() == other.keys() and all(_same(self[name], other[name]) for name in self)

    __hash__ = None  # type: ignore[assignment]  # equal mappings of other types have no hash to agree with

    def __repr__(self) -> str:
        names = [*_SHOWN, *(name for name in _SHOWN_IF_ANY if self[name])]
        shown = ", ".join(f"{name} {format_statistic(self[name])}" for name in names)
        return f"SummaryStatistics({shown})"


def _same(one: StatisticValue, other: StatisticValue) -> bool:
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other):
        return True
    return one == other
