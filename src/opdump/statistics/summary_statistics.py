"""SummaryStatistics: the named statistics of one summary."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from opdump.records import Statistics, StatisticValue, format_statistic
from opdump.statistics.device_extremes import Extremes
from opdump.statistics.table import OWN

if TYPE_CHECKING:
    from opdump.kernels import Summary


_FROM_SUMMARY: Final = tuple(name for name, each in OWN.items() if each.of_summary is not None)
_SHOWN: Final = ("max", "min", "avg", "l2norm", "count")
_SHOWN_IF_ANY: Final = ("nan count", "negative inf count", "positive inf count")
_NO_OTHERS: Final[Mapping[str, StatisticValue]] = MappingProxyType({})


class SummaryStatistics(Statistics):
    """Every statistic of a summary, and those that were computed in addition, by the config's spelling.

    Values are computed on access. `avg` and `l2norm` are in double precision and propagate NaN and Inf; for no elements `avg` is
    NaN and `l2norm` 0. Two mappings with NaN in the same places are equal. `others` has the digests (`md5`, `hash` and `xxh3`, if
    computed) and the statistics of installed packages.
    """

    __slots__ = ("extremes", "others", "summary")

    def __init__(
        self, summary: Summary, others: Mapping[str, StatisticValue] | None = None, extremes: Extremes | None = None
    ) -> None:
        """`extremes` are max and min by the rules of a device if they differ; they are not part of the mapping."""
        self.summary: Final = summary
        self.extremes: Final = extremes
        self.others: Final = others or _NO_OTHERS

    def __reduce__(self) -> tuple[Any, ...]:
        """Comparisons run in other processes, too, and a mapping view cannot be sent to them."""
        return SummaryStatistics, (self.summary, dict(self.others), self.extremes)

    def __getitem__(self, name: str, /) -> Any:
        own = OWN.get(name)
        if own is None or own.of_summary is None:
            return self.others[(own and own.same_as) or name]
        return own.kind(own.of_summary(self.summary))

    def __iter__(self) -> Iterator[str]:
        yield from _FROM_SUMMARY
        yield from self.others

    def __len__(self) -> int:
        return len(_FROM_SUMMARY) + len(self.others)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        if isinstance(other, SummaryStatistics) and (self.summary, self.others) == (other.summary, other.others):
            return True
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
