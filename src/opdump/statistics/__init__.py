"""The named statistics of the config dialects, over one summary of a tensor."""

from __future__ import annotations

from opdump.records import format_statistic
from opdump.statistics.categories import (
    CATEGORIES,
    DEFAULT_CATEGORIES,
    Category,
    canonical_category,
    category_of_heading,
)
from opdump.statistics.device_extremes import Extremes, device_extremes, has_device_extremes
from opdump.statistics.digests import digest, digests_of
from opdump.statistics.summary_statistics import SummaryStatistics

__all__ = [
    "CATEGORIES",
    "DEFAULT_CATEGORIES",
    "Category",
    "Extremes",
    "SummaryStatistics",
    "canonical_category",
    "category_of_heading",
    "device_extremes",
    "digest",
    "digests_of",
    "format_statistic",
    "has_device_extremes",
]
