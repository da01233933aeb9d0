"""Numbers and names of element types in dump files: `27` is `BF16`, a `bfloat16` of two bytes.

See docs/dump-files.md#element-types. The numbering is neither that of ACL nor that of GE.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from opdump.errors import UndecodableTensorError


@dataclass(frozen=True, slots=True)
class DataType:
    """One number of the enumeration.

    `name` is the name in the enumeration without its prefix `DT_`; `dtype` is the name in a record. `bits` is the size of an
    element in the file, 0 if unknown: such tensors are bytes without a shape (text, resources of a variant).
    """

    number: int
    name: str
    dtype: str
    bits: int


_TABLE: Final = (
    (0, "UNDEFINED", "undefined", 8),
    (1, "FLOAT", "float32", 32),
    (2, "FLOAT16", "float16", 16),
    (3, "INT8", "int8", 8),
    (4, "UINT8", "uint8", 8),
    (5, "INT16", "int16", 16),
    (6, "UINT16", "uint16", 16),
    (7, "INT32", "int32", 32),
    (8, "INT64", "int64", 64),
    (9, "UINT32", "uint32", 32),
    (10, "UINT64", "uint64", 64),
    (11, "BOOL", "bool", 8),
    (12, "DOUBLE", "float64", 64),
    (13, "STRING", "string", 0),
    (14, "DUAL_SUB_INT8", "dual_sub_int8", 8),
    (15, "DUAL_SUB_UINT8", "dual_sub_uint8", 8),
    (16, "COMPLEX64", "complex64", 64),
    (17, "COMPLEX128", "complex128", 128),
    (18, "QINT8", "qint8", 8),
    (19, "QINT16", "qint16", 16),
    (20, "QINT32", "qint32", 32),
    (21, "QUINT8", "quint8", 8),
    (22, "QUINT16", "quint16", 16),
    (23, "RESOURCE", "resource", 64),
    (24, "STRING_REF", "string_ref", 0),
    (25, "DUAL", "dual", 0),
    (26, "VARIANT", "variant", 0),
    (27, "BF16", "bfloat16", 16),
    (28, "INT4", "int4", 4),
    (29, "UINT1", "uint1", 1),
    (30, "INT2", "int2", 2),
    (31, "UINT2", "uint2", 2),
    (32, "COMPLEX32", "complex32", 32),
    (33, "HIFLOAT8", "hifloat8", 8),
    (34, "FLOAT8_E5M2", "float8_e5m2", 8),
    (35, "FLOAT8_E4M3FN", "float8_e4m3fn", 8),
    (36, "FLOAT8_E8M0", "float8_e8m0fnu", 8),
    (37, "FLOAT6_E3M2", "float6_e3m2fn", 6),
    (38, "FLOAT6_E2M3", "float6_e2m3fn", 6),
    (39, "FLOAT4_E2M1", "float4_e2m1fn", 4),
    (40, "FLOAT4_E1M2", "float4_e1m2", 4),
    (41, "HIFLOAT4", "hifloat4", 0),
    (42, "HIFLOAT4_SCALE", "hifloat4_scale", 0),
)
DATA_TYPES: Final[Mapping[int, DataType]] = MappingProxyType({row[0]: DataType(*row) for row in _TABLE})
BY_NAME: Final[Mapping[str, DataType]] = MappingProxyType(
    {name: kind for kind in DATA_TYPES.values() for name in (kind.name, kind.dtype)}
)


def data_type(number: int) -> DataType:
    """The type of that number; a type without a size for an unknown number, so that nothing is lost."""
    return DATA_TYPES.get(number) or DataType(number, str(number), f"type_{number}", 0)


def data_type_number(name: str) -> int:
    """The number of `FLOAT16` or `float16`. Raises UndecodableTensorError if dump files have no such type."""
    kind = BY_NAME.get(name.removeprefix("DT_"))
    if kind is None:
        known = ", ".join(kind.name for kind in DATA_TYPES.values())
        raise UndecodableTensorError(f"{name}: dump files have no such element type; they have {known}")
    return kind.number
