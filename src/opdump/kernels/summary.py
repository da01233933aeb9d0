"""The one-pass summary of a tensor, the supported element types, and arrays in the form that kernels take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from opdump.errors import UnsupportedDtypeError

# The one-pass summary of a tensor: its numbers, and the supported element types.

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
DTYPE_CODES: Mapping[str, int] = {
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


# Arrays in the form that kernels take: an address, a code of an element type, strides in elements.


class Addressed(NamedTuple):
    """Elements of any shape at an address, which is valid while `array` exists."""

    array: NDArray[np.generic]
    dtype: str
    strides: tuple[int, ...]

    @property
    def address(self) -> int:
        return self.array.ctypes.data

    @property
    def code(self) -> int:
        return DTYPE_CODES[self.dtype]


def addressed(array: NDArray[np.generic], dtype: str | None = None) -> Addressed:
    """The array itself, or a copy if its byte order is not the machine's, or if its strides are not multiples of the element
    size.

    `dtype` names the element type if numpy cannot. Raises UnsupportedDtypeError for types that are not in DTYPE_CODES.
    """
    array = np.asarray(array)  # a numpy scalar has a type but no memory
    name = array.dtype.name if dtype is None else dtype
    if name not in DTYPE_CODES:
        raise UnsupportedDtypeError(f"elements of type {name} have no summary; these have: {', '.join(DTYPE_CODES)}")
    size = np.dtype(np.uint16 if name == "bfloat16" else name).itemsize
    if array.dtype.itemsize != size:
        raise UnsupportedDtypeError(
            f"an array of {array.dtype} cannot hold {name}: its elements have {array.dtype.itemsize} bytes, not {size}"
        )
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if any(stride % size for stride in array.strides):
        array = np.ascontiguousarray(array)
    return Addressed(array, name, tuple(stride // size for stride in array.strides))
