"""The named statistics of the config dialects: `table` defines them, and a summary of a tensor or its elements provide their
values.
"""

from __future__ import annotations

from opdump.records import format_statistic
from opdump.statistics.summary_statistics import (
    ElementStatistics,
    Extremes,
    SummaryStatistics,
    device_extremes,
    has_device_extremes,
    have_device_extremes,
    merge_statistics,
)
from opdump.statistics.table import (
    DEFAULT,
    DEVICE_DEFAULT,
    OWN,
    STATISTICS,
    Statistic,
    dump_stats,
    name_of_heading,
    one_spelling,
    statistic,
    unknown_names,
)

__all__ = [
    "DEFAULT",
    "DEVICE_DEFAULT",
    "OWN",
    "STATISTICS",
    "ElementStatistics",
    "Extremes",
    "Statistic",
    "SummaryStatistics",
    "device_extremes",
    "dump_stats",
    "format_statistic",
    "has_device_extremes",
    "have_device_extremes",
    "merge_statistics",
    "name_of_heading",
    "one_spelling",
    "statistic",
    "unknown_names",
]
