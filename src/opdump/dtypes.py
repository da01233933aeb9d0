"""Element types of dump files: numbers, names, and the values of narrow types."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from opdump.errors import UndecodableTensorError

if TYPE_CHECKING:  # a small conversion runs without numpy, whose import takes most of its time
    import numpy as np
    import numpy.typing as npt

# Numbers and names of element types in dump files: `27` is `BF16`, a `bfloat16` of two bytes.
#
# See docs/dump-files.md#element-types. The numbering is neither that of ACL nor that of GE.


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
DATA_TYPES: Final[Mapping[int, DataType]] = {row[0]: DataType(*row) for row in _TABLE}
BY_NAME: Final[Mapping[str, DataType]] = {
    name: kind for kind in DATA_TYPES.values() for name in (kind.name, kind.dtype)
}


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


# The values of narrow types: elements of types that numpy lacks are widened, with a table of the values of each byte.

# The floats of at most 8 bits that `ml_dtypes` has. Releases before 0.5, which older frameworks pin, lack some of them.


def small_float(name: str) -> np.dtype[Any]:
    """The numpy type of that name, such as `float8_e4m3fn`. Raises UndecodableTensorError if ml_dtypes lacks it."""
    import ml_dtypes
    import numpy as np

    found = getattr(ml_dtypes, name, None)
    if found is None:
        raise UndecodableTensorError(
            f"the installed ml_dtypes {ml_dtypes.__version__} has no {name}; run: pip install 'ml_dtypes>=0.5'"
        )
    kind: np.dtype[Any] = np.dtype(found)
    return kind


# HiFloat8, the 8-bit float of Ascend devices with a tapered exponent (arXiv:2409.16626).
#
# After the sign comes the dot, a prefix that gives the number of exponent bits; what is left is the mantissa:
#
#     11   D=4   exponent of 4 bits, mantissa of 1       0001  D=0   no exponent, mantissa of 3
#     10   D=3   exponent of 3 bits, mantissa of 2       0000  DML   denormal: 2 ** (mantissa - 23), mantissa of 3
#     01   D=2   exponent of 2 bits, mantissa of 3
#     001  D=1   exponent of 1 bit,  mantissa of 3
#
# The exponent is sign and magnitude, and the leading one of the magnitude is not stored. 0x00 is zero, 0x80 NaN, 0x6f and 0xef the
# infinities; there is no negative zero.


def hifloat8_values() -> npt.NDArray[np.float32]:
    """The value of each of the 256 codes."""
    import numpy as np

    return np.array([_value(code) for code in range(256)], np.float32)


def _value(code: int) -> float:
    if code == 0x80:
        return math.nan
    sign = -1.0 if code & 0x80 else 1.0
    bits = code & 0x7F
    if bits == 0x6F:
        return sign * math.inf
    if bits >> 3 == 0:
        mantissa = bits & 7
        return sign * 2.0 ** (mantissa - 23) if mantissa else 0.0
    if bits >> 3 == 1:
        return sign * (1 + (bits & 7) / 8)
    for exponent_bits, dot, dot_bits in ((4, 0b11, 2), (3, 0b10, 2), (2, 0b01, 2), (1, 0b001, 3)):
        rest_bits = 7 - dot_bits
        if bits >> rest_bits == dot:
            rest = bits & ((1 << rest_bits) - 1)
            mantissa_bits = rest_bits - exponent_bits
            stored = rest >> mantissa_bits
            magnitude_bits = exponent_bits - 1
            magnitude = 1 << magnitude_bits | stored & ((1 << magnitude_bits) - 1)
            exponent = -magnitude if stored >> magnitude_bits else magnitude
            return sign * 2.0**exponent * (1 + (rest & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits))
    raise AssertionError(f"no dot in {code:#x}")


# Codes looked up at once: numpy's indices for them stay in the cache.
_CHUNK: Final = 1 << 15
# For fewer codes, building the table of pairs costs more than it saves.
_WORTH_PAIRS: Final = 1 << 17


def widen(codes: npt.NDArray[np.uint8], table: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values of the bytes `codes`, in order, in one dimension.

    `table` has a row for each of the 256 bytes, in C order: a row contains the elements of one byte, and takes 1, 2, 4 or 8
    bytes.
    """
    import numpy as np

    if table.dtype == np.float32 and table.size == 256:
        from opdump.kernels import active, widened  # most files have no such type

        if active().startswith("native"):
            return widened(codes, table.reshape(256))
    rows = table.view(f"u{table.nbytes // 256}").reshape(-1)
    result = np.empty(len(codes), rows.dtype)
    head = 0
    if rows.itemsize <= 4 and len(codes) >= _WORTH_PAIRS:
        # Two bytes at once: half as many steps through a table that still fits in the cache.
        head = len(codes) // 2 * 2
        _look_up(
            codes[:head].view("<u2"), _pairs(rows.tobytes(), rows.itemsize), result[:head].view(f"u{rows.itemsize * 2}")
        )
    _look_up(codes[head:], rows, result[head:])
    return result.view(table.dtype)


def _look_up(codes: npt.NDArray[Any], rows: npt.NDArray[Any], result: npt.NDArray[Any]) -> None:
    for start in range(0, len(codes), _CHUNK):
        part = slice(start, start + _CHUNK)
        # No code is out of range; "clip" avoids a numpy buffer that "raise" needs.
        rows.take(codes[part], out=result[part], mode="clip")


@lru_cache(maxsize=16)
def _pairs(rows: bytes, size: int) -> npt.NDArray[Any]:
    """The rows of two bytes, for all 65536 pairs; the first byte of a pair is the low one."""
    import numpy as np

    single = np.frombuffer(rows, f"u{size}")
    pairs = np.empty((256, 256, 2), single.dtype)
    pairs[:, :, 0] = single[None, :]
    pairs[:, :, 1] = single[:, None]
    return pairs.reshape(-1).view(f"u{size * 2}")
