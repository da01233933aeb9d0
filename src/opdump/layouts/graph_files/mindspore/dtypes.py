"""Element types in the spelling of the graph files: `Float32` in `.ir`, 11 in `.pb`, `float32` here.

Numbers: `debugger.DataType` of the debugger's `debug_graph.proto` (bfloat16 and int4 as MindSpore 2.10 writes them). That list
has no complex and no 8-bit float type; such types get number 0 and keep their name in another field.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

_TABLE: Final = (
    ("bool", "Bool", 1),
    ("int8", "Int8", 2),
    ("int16", "Int16", 3),
    ("int32", "Int32", 4),
    ("int64", "Int64", 5),
    ("uint8", "UInt8", 6),
    ("uint16", "UInt16", 7),
    ("uint32", "UInt32", 8),
    ("uint64", "UInt64", 9),
    ("float16", "Float16", 10),
    ("float32", "Float32", 11),
    ("float64", "Float64", 12),
    ("string", "String", 13),
    ("bfloat16", "BFloat16", 46),
    ("int4", "Int4", 48),
    ("complex64", "Complex64", 0),
    ("complex128", "Complex128", 0),
)
_IR_NAMES: Final = MappingProxyType({dtype: name for dtype, name, _ in _TABLE})
_PB_NUMBERS: Final = MappingProxyType({dtype: number for dtype, _, number in _TABLE if number})
_PB_DTYPES: Final = MappingProxyType(
    {number: dtype for dtype, _, number in _TABLE if number}
    | {31: "tuple", 32: "list", 36: "int32", 37: "uint32", 38: "float32", 43: "umonad", 44: "iomonad"}
)
_UNDEFINED: Final = "Undefined"


def ir_name(dtype: str) -> str:
    """`float32` -> `Float32`; other types are unchanged, and an unknown one (empty) becomes `Undefined`."""
    return _IR_NAMES.get(dtype, dtype) or _UNDEFINED


def from_ir_name(name: str) -> str:
    """`Float32` -> `float32`; `Undefined` and `Unknown` -> empty."""
    return "" if name in (_UNDEFINED, "Unknown") else name.lower()


def pb_number(dtype: str) -> int:
    """Number of the type in `debugger.DataType`; 0 if it is not in the list."""
    return _PB_NUMBERS.get(dtype, 0)


def from_pb_number(number: int) -> str:
    """The type of that number; empty if it is 0 or unknown."""
    return _PB_DTYPES.get(number, "")
