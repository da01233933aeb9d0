"""The statistics that reports show of a tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping

from opdump.errors import OpdumpError
from opdump.kernels import DTYPE_CODES, summarise
from opdump.layouts.ascend.payload import DamagedPayload
from opdump.records import StatisticValue, TensorRecord
from opdump.statistics import SummaryStatistics, format_statistic

SHOWN = ("max", "min", "avg", "l2norm")
_NOT_FINITE = ("nan count", "negative inf count", "positive inf count")


def statistics_of(record: TensorRecord, damaged: list[str]) -> Mapping[str, StatisticValue]:
    """The recorded statistics; where none were recorded, those of the elements in the file, which may be a sample. Empty for complex tensors, and
    where the file cannot be read: `damaged` is told of one that the problems of the dump do not call damaged already.
    """
    if record.statistics or record.payload is None or isinstance(record.payload, DamagedPayload):
        return record.statistics
    try:
        array = record.payload.to_host()
    except OpdumpError as error:
        damaged.append(str(error))
        return {}
    return SummaryStatistics(summarise(array)) if array.dtype.name in DTYPE_CODES else {}


def shown_statistics(statistics: Mapping[str, StatisticValue]) -> list[str]:
    """One text for each of SHOWN and one for `not_finite`; empty where a statistic is unknown."""
    texts = [format_statistic(statistics[name]) if name in statistics else "" for name in SHOWN]
    count = not_finite(statistics)
    return [*texts, "" if count is None else str(count)]


def not_finite(statistics: Mapping[str, StatisticValue]) -> int | None:
    """How many elements are NaN or infinite; None where the statistics do not tell.

    Without the counts, a NaN or an infinity among max, min, avg and l2norm tells that there is at least one.
    """
    counts = [int(statistics[name]) for name in _NOT_FINITE if name in statistics]
    if len(counts) == len(_NOT_FINITE):
        return sum(counts)
    values = [statistics[name] for name in SHOWN if name in statistics]
    if any(isinstance(value, float) and not math.isfinite(value) for value in values):
        return max(1, sum(counts))
    return sum(counts) or None
