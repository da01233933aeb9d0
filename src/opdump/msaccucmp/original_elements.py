"""Decodes the bytes of a tensor like the original, including its errors.

The values of the 8-bit floats are not those of the standards (`opdump.dump_file.elements` has these): E4M3FN has no NaN, minus
infinity is lost in E5M2 and HiFloat8, and HiFloat8 codes with short exponents are read with too many mantissa bits. See
docs/msaccucmp.md#where-opdump-convert-differs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opdump.dump_file import DumpTensor, data_type
from opdump.msaccucmp.exit_codes import AbortError, CommandError, ExitCode

_NATIVE: Final[Mapping[int, np.dtype[Any]]] = MappingProxyType(
    {0: np.dtype("i1"), 23: np.dtype("<i8")}
    | {number: np.dtype(data_type(number).dtype).newbyteorder("<") for number in (*range(1, 13), 16, 17)}
)
_UNDEFINED, _BF16, _UINT1, _HIFLOAT8, _E5M2, _E4M3FN = 0, 27, 29, 33, 34, 35
_EIGHT_BIT_FLOATS: Final = frozenset({_HIFLOAT8, _E5M2, _E4M3FN})
_OTHERS: Final[Mapping[int, str]] = MappingProxyType({_BF16: "bfloat16", _UINT1: "uint8"})
_TABLE_NAMES: Final[Mapping[int, str]] = MappingProxyType(
    {_BF16: "bfloat16", _UINT1: "uint1", _HIFLOAT8: "hifloat8", _E5M2: "float8_e5m2", _E4M3FN: "float8_e4m3fn"}
)


def is_known_type(number: int) -> bool:
    """Whether the original reads elements of the type."""
    return number in _NATIVE or number in _OTHERS or number in _EIGHT_BIT_FLOATS


def check_data_type(tensor: DumpTensor) -> None:
    """Raise the error that ends the whole file if the original does not know the type."""
    number = tensor.data_type
    if not is_known_type(number):
        raise CommandError(
            ExitCode.BAD_DATA_TYPE,
            f"{tensor.name} has elements of type {data_type(number).name} ({number}), which this command does not read; "
            "`opdump convert` does",
        )


def dtype_name(number: int) -> str:
    """The name of the type in the tables of comparisons."""
    native = _NATIVE.get(number)
    return str(np.dtype(native).name) if native is not None else _TABLE_NAMES[number]


def dtype_in_name(number: int) -> str:
    """The name of the type in the name of a bin file, the one of the dump. Raises AbortError for 8-bit floats."""
    native = _NATIVE.get(number)
    if native is not None:
        return str(native.name)
    if number in _OTHERS:
        return _OTHERS[number]
    raise AbortError(
        f"elements of type {data_type(number).name} cannot be saved with -t bin: numpy has no type of this name; "
        "use -t npy, or `opdump convert`"
    )


def original_shape_of(tensor: DumpTensor) -> tuple[int, ...]:
    """The shape that the original assigns to a tensor: that of the header, or all bytes if the type is undefined."""
    return (tensor.size,) if tensor.data_type == _UNDEFINED else tensor.shape


def decode(tensor: DumpTensor) -> npt.NDArray[Any]:
    """The elements in one dimension, as many as the shape needs and the file has.

    A shape with a zero returns an empty float64 array of that shape. Raises AbortError if the bytes are not a whole number of
    elements, like the original.
    """
    shape = original_shape_of(tensor)
    if 0 in shape:
        return np.zeros(_countable(shape), np.float64)
    count = math.prod(shape)
    raw = tensor.data.read()
    number = tensor.data_type
    if number == _UINT1:
        return np.unpackbits(np.frombuffer(raw[:count], np.uint8))
    if number in _EIGHT_BIT_FLOATS:
        values: npt.NDArray[Any] = _values(number).take(np.frombuffer(raw[:count], np.uint8))
        return values
    dtype = np.dtype("<u2") if number == _BF16 else _NATIVE[number]
    part = raw[: count * dtype.itemsize]
    if len(part) % dtype.itemsize:
        raise AbortError(
            f"{tensor.name} has {len(part)} bytes, which is no whole number of elements of {dtype.itemsize} bytes"
        )
    elements = np.frombuffer(part, dtype)
    if number == _BF16:
        widened: npt.NDArray[Any] = (elements.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return widened
    return elements


def _countable(shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) > 64 or math.prod(size for size in shape if size) > np.iinfo(np.intp).max // 8:
        raise AbortError(f"a shape of {len(shape)} dimensions, {shape[:8]}, which numpy cannot hold")
    return shape


@cache
def _values(number: int) -> npt.NDArray[np.float64]:
    """The value of every code in the original."""
    decoder = {_HIFLOAT8: _hifloat8, _E5M2: _e5m2, _E4M3FN: _e4m3fn}[number]
    return np.array([decoder(code) for code in range(256)])


def _e5m2(code: int) -> float:
    sign, exponent, mantissa = _fields(code, 2)
    if exponent == 31:
        return math.nan if mantissa else math.inf  # the sign is lost
    return sign * _binary(exponent, mantissa, 2, 15)


def _e4m3fn(code: int) -> float:
    sign, exponent, mantissa = _fields(code, 3)
    return sign * _binary(exponent, mantissa, 3, 7)  # all codes are numbers here


def _fields(code: int, mantissa_bits: int) -> tuple[int, int, int]:
    return -1 if code & 0x80 else 1, (code & 0x7F) >> mantissa_bits, code & ((1 << mantissa_bits) - 1)


def _binary(exponent: int, mantissa: int, mantissa_bits: int, bias: int) -> float:
    if exponent == 0:
        return math.ldexp(mantissa, 1 - bias - mantissa_bits)
    return math.ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits)


def _hifloat8(code: int) -> float:
    """A sign, a prefix that gives the width of the exponent, the exponent as sign and magnitude, and the mantissa."""
    if code == 0x80:
        return math.nan
    magnitude = code & 0x7F
    if magnitude == 0x6F:
        return math.inf  # the sign is lost
    sign = -1 if code & 0x80 else 1
    if magnitude < 8:
        return sign * math.ldexp(1, magnitude - 23) if magnitude else 0.0
    if magnitude < 16:
        return sign * (1 + magnitude % 32 / 32)  # five bits of mantissa instead of three
    if magnitude < 32:
        # Four bits, and the last bit of the prefix as sign of the exponent.
        return sign * 0.5 * (1 + magnitude % 16 / 16)
    exponent_bits = 4 if magnitude >= 0x60 else 3 if magnitude >= 0x40 else 2
    mantissa_bits = 5 - exponent_bits
    field = magnitude >> mantissa_bits & ((1 << exponent_bits) - 1)
    # The highest bit of the magnitude is 1 and not stored: its place contains the sign.
    half = 1 << (exponent_bits - 1)
    exponent = half | field % half
    mantissa = magnitude % (1 << mantissa_bits) / (1 << mantissa_bits)
    return sign * math.ldexp(1 + mantissa, -exponent if field & half else exponent)
