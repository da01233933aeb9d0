"""Converts the numbers of element types and formats in calls, which differ from those of dump files and of numpy.

Source: the public headers (aclDataType, aclFormat); numpy's own numbers (`numpy.dtype.num`) for `acl.util`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np

DTYPES: Final[Mapping[int, str]] = MappingProxyType(
    {
        0: "float32",
        1: "float16",
        2: "int8",
        3: "int32",
        4: "uint8",
        6: "int16",
        7: "uint16",
        8: "uint32",
        9: "int64",
        10: "uint64",
        11: "float64",
        12: "bool",
        13: "string",
        16: "complex64",
        17: "complex128",
        27: "bfloat16",
        29: "int4",
        35: "float8_e5m2",
        36: "float8_e4m3fn",
        37: "float8_e8m0fnu",
        40: "float4_e2m1fn",
    }
)
"""Type names of records by the number of aclDataType."""
NUMBERS: Final[Mapping[str, int]] = MappingProxyType({name: number for number, name in DTYPES.items()})
UNDEFINED_TYPE: Final = -1
FORMAT_ND: Final = 2
FORMATS: Final = frozenset({-1, 0, 1, 2, 3, 4, 12, 16, 27, 29, 30, 32, 33, 35, 47})

_WITHOUT_ARRAY: Final = frozenset({"string", "int4", "float4_e2m1fn"})
_STORAGE: Final[Mapping[str, str]] = MappingProxyType(
    {"bfloat16": "uint16", "float8_e5m2": "uint8", "float8_e4m3fn": "uint8", "float8_e8m0fnu": "uint8"}
)
# Every type of fixed size without objects; dates and long doubles are not element types of tensors.
_CODES_BY_NUMBER: Final[dict[int, str]] = {np.dtype(code).num: code for code in "?bBhHiIlLqQefdFD"}


def storage(dtype: str) -> np.dtype[Any] | None:
    """The numpy type for the raw bits of an element; None for text and for types packed into less than a byte."""
    return None if dtype in _WITHOUT_ARRAY else np.dtype(_STORAGE.get(dtype, dtype))


def numpy_type(number: int) -> np.dtype[Any] | None:
    """The numpy type of that number (`numpy.dtype.num`); None if tensors cannot have it."""
    code = _CODES_BY_NUMBER.get(number)
    return None if code is None else np.dtype(code)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """An input or output: name, element type as in records, and shape; -1 is an unknown dimension."""

    name: str
    dtype: str
    dims: tuple[int, ...]

    @property
    def data_type(self) -> int:
        """Number of aclDataType."""
        return NUMBERS.get(self.dtype, UNDEFINED_TYPE)

    @property
    def least_size(self) -> int:
        """Number of bytes if every unknown dimension is 1."""
        return size_of(self.dtype, [1 if dim < 0 else dim for dim in self.dims])


def size_of(dtype: str, dims: Sequence[int]) -> int:
    """Number of bytes of a tensor; 0 for text."""
    kind = storage(dtype)
    if kind is None:
        return (math.prod(dims) + 1) // 2 if dtype != "string" else 0
    return math.prod(dims) * kind.itemsize
