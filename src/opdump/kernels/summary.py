"""The one-pass summary of a tensor: its numbers, and the supported element types."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

SUMMARY_FIELDS = (
    "count",
    "nan",
    "positive_inf",
    "negative_inf",
    "zero",
    "negative",
    "positive",
    "max",
    "min",
    "sum",
    "sum_squares",
)


class Summary(NamedTuple):
    """Eleven float64 numbers of one tensor, each element cast to float64 first (bool as 0 and 1).

    count         elements
    nan, positive_inf, negative_inf, zero, negative, positive
                  counts; zero takes -0.0 too, negative is x < 0 with -Inf, positive x > 0 with Inf, NaN is in none
    max, min      NaN if any element is NaN; Inf takes part; never -0.0; -Inf and Inf for no elements
    sum, sum_squares
                  NaN and Inf propagate as in IEEE addition; 0 for no elements

    Source: the host rules of MindSpore's statistic.csv.
    """

    count: float  # type: ignore[assignment]  # hides tuple.count, of which a row of numbers has no use
    nan: float
    positive_inf: float
    negative_inf: float
    zero: float
    negative: float
    positive: float
    max: float
    min: float
    sum: float
    sum_squares: float


# The numbers follow `enum class DType` in native/summarise.h.
DTYPE_CODES: Mapping[str, int] = MappingProxyType(
    {
        "float16": 0,
        "bfloat16": 1,
        "float32": 2,
        "float64": 3,
        "int8": 4,
        "int16": 5,
        "int32": 6,
        "int64": 7,
        "uint8": 8,
        "uint16": 9,
        "uint32": 10,
        "uint64": 11,
        "bool": 12,
    }
)
