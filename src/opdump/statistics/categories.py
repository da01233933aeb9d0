"""Names and headings of the statistics (`statistic_category` of data_dump.json, statistic.csv)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Category:
    """One value of `statistic_category` and the column it becomes."""

    name: str
    heading: str
    on_device: bool = False
    """Whether `stat_calc_mode: device` offers it."""


# Two of the names mislead: "negative zero count" counts the elements below zero and "positive zero count" those
# above; zeros of either sign are in "zero count".
CATEGORIES: Final[Mapping[str, Category]] = MappingProxyType(
    {
        category.name: category
        for category in (
            Category("max", "Max Value", on_device=True),
            Category("min", "Min Value", on_device=True),
            Category("avg", "Avg Value", on_device=True),
            Category("count", "Count"),
            Category("negative zero count", "Negative Zero Count"),
            Category("positive zero count", "Positive Zero Count"),
            Category("nan count", "NaN Count"),
            Category("negative inf count", "Negative Inf Count"),
            Category("positive inf count", "Positive Inf Count"),
            Category("zero count", "Zero Count"),
            Category("md5", "MD5"),
            Category("l2norm", "L2Norm Value", on_device=True),
            Category("hash", "SHA1"),
            Category("hash:sha1", "SHA1"),
            Category("hash:md5", "MD5"),
        )
    }
)
DEFAULT_CATEGORIES: Final = ("max", "min", "l2norm")

_ALIASES: Final[Mapping[str, str]] = MappingProxyType({"hash:md5": "md5", "hash:sha1": "hash"})


def canonical_category(name: str) -> str:
    """The one spelling of a category that has two: `hash:md5` is `md5`, `hash:sha1` is `hash`."""
    return _ALIASES.get(name, name)


def category_of_heading(heading: str) -> str | None:
    """The category of a column of statistic.csv, in any case (older files write `Nan Count`); None if it is none."""
    wanted = heading.strip().lower()
    for category in CATEGORIES.values():
        if category.heading.lower() == wanted:
            return category.name
    return None
