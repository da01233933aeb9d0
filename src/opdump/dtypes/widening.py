"""The values of narrow types: elements of types that numpy lacks are widened, with a table of the values of each byte."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opdump.errors import UndecodableTensorError

# The floats of at most 8 bits that `ml_dtypes` has. Releases before 0.5, which older frameworks pin, lack some of them.


def small_float(name: str) -> np.dtype[Any]:
    """The numpy type of that name, such as `float8_e4m3fn`. Raises UndecodableTensorError if ml_dtypes lacks it."""
    import ml_dtypes

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
    single = np.frombuffer(rows, f"u{size}")
    pairs = np.empty((256, 256, 2), single.dtype)
    pairs[:, :, 0] = single[None, :]
    pairs[:, :, 1] = single[:, None]
    return pairs.reshape(-1).view(f"u{size * 2}")
