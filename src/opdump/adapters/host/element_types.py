"""Element types of ONNX tensors: their names, their bits, and how numpy reads them.

Source: `TensorProto.DataType` of the ONNX specification. Names are those of `TensorRecord.dtype`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opdump.dtypes.small_floats import small_float
from opdump.kernels import DTYPE_CODES

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class ElementType:
    """One element type.

    `number` is the number in ONNX, `runtime_name` the name in `tensor(...)`. `storage` is the numpy type of the raw bits: the type
    itself if numpy has it, otherwise an unsigned integer; for elements below 8 bits, the bytes into which they are packed. `code` is the
    number of the type in the summary kernels, None if they do not support it. Only text has 0 `bits`.
    """

    number: int
    dtype: str
    runtime_name: str
    bits: int
    storage: np.dtype[Any]
    code: int | None
    known_to_numpy: bool

    def size(self, count: int) -> int:
        return (count * self.bits + 7) // 8


_ROWS: Final = (
    (1, "float32", "float", 32),
    (2, "uint8", "uint8", 8),
    (3, "int8", "int8", 8),
    (4, "uint16", "uint16", 16),
    (5, "int16", "int16", 16),
    (6, "int32", "int32", 32),
    (7, "int64", "int64", 64),
    (8, "string", "string", 0),
    (9, "bool", "bool", 8),
    (10, "float16", "float16", 16),
    (11, "float64", "double", 64),
    (12, "uint32", "uint32", 32),
    (13, "uint64", "uint64", 64),
    (14, "complex64", "complex64", 64),
    (15, "complex128", "complex128", 128),
    (16, "bfloat16", "bfloat16", 16),
    (17, "float8_e4m3fn", "float8e4m3fn", 8),
    (18, "float8_e4m3fnuz", "float8e4m3fnuz", 8),
    (19, "float8_e5m2", "float8e5m2", 8),
    (20, "float8_e5m2fnuz", "float8e5m2fnuz", 8),
    (21, "uint4", "uint4", 4),
    (22, "int4", "int4", 4),
    (23, "float4_e2m1fn", "float4e2m1", 4),
    (24, "float8_e8m0fnu", "float8e8m0", 8),
    (25, "uint2", "uint2", 2),
    (26, "int2", "int2", 2),
)


def _element_type(number: int, dtype: str, runtime_name: str, bits: int) -> ElementType:
    known = bits >= 8 and not dtype.startswith(("bfloat", "float8"))
    storage = np.dtype(dtype) if known else np.dtype(np.uint16 if bits == 16 else np.uint8)
    return ElementType(number, dtype, runtime_name, bits, storage, DTYPE_CODES.get(dtype), known)


BY_NUMBER: Final[Mapping[int, ElementType]] = MappingProxyType({row[0]: _element_type(*row) for row in _ROWS})
BY_RUNTIME_NAME: Final[Mapping[str, ElementType]] = MappingProxyType(
    {element.runtime_name: element for element in BY_NUMBER.values()}
)
BY_DTYPE: Final[Mapping[str, ElementType]] = MappingProxyType(
    {element.dtype: element for element in BY_NUMBER.values()}
)
_SMALL_FLOATS: Final = frozenset(
    {
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
        *("float4_e2m1fn", "float8_e8m0fnu"),
    }
)


def element_of_type(type_text: str) -> ElementType | None:
    """The element type in a text such as `tensor(float)`; None for a sequence, map, optional or sparse tensor."""
    if not type_text.startswith("tensor("):
        return None
    return BY_RUNTIME_NAME.get(type_text[7:-1])


def widened_elements(raw: Array, element: ElementType, shape: tuple[int, ...]) -> Array:
    """The elements of `raw` in `shape`, in a type that numpy has.

    `raw` is flat and has the type's `storage`; packed elements begin in the lowest bits. bfloat16 and floats of 8 and 4 bits become
    float32, integers below 8 bits become int8 or uint8, without loss. Types that numpy has are returned without a copy. Raises
    UndecodableTensorError for a small float that the installed ml_dtypes lacks.
    """
    if element.known_to_numpy:
        return raw.reshape(shape)
    if element.dtype == "bfloat16":
        return (raw.astype(np.uint32) << 16).view(np.float32).reshape(shape)
    codes = raw if element.bits == 8 else _unpacked(raw, element.bits, int(np.prod(shape, dtype=np.int64)))
    if element.dtype in _SMALL_FLOATS:
        floats: Array = codes.view(small_float(element.dtype)).astype(np.float32)
        return floats.reshape(shape)
    if element.dtype.startswith("int"):
        # Shifting left and right again extends the sign.
        unused = 8 - element.bits
        codes = (codes << unused).view(np.int8) >> unused
    return codes.reshape(shape)


def _unpacked(raw: Array, bits: int, count: int) -> Array:
    per_byte = 8 // bits
    shifts = np.arange(per_byte, dtype=np.uint8) * bits
    codes: Array = (raw[:, None] >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(-1)[:count]
