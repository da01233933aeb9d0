"""Decodes the bytes of a tensor in a dump file to numpy elements, and encodes them.

Types that numpy has are views of the bytes. The others are widened with a table of the elements in each byte: bfloat16 and floats
of 8, 6 and 4 bits to float32, integers of 4, 2 and 1 bits to int8 or uint8. Several elements in a byte begin with its low bits,
except in UINT1, whose first element is the highest bit. FLOAT6 takes four elements in three bytes.

Values are those of the standards: OCP 8-bit floats (E4M3FN has NaN at 0x7f and 0xff and no infinity), the OCP microscaling types,
and HiFloat8 (arXiv:2409.16626): docs/dump-files.md#element-types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opdump.dtypes import data_type, hifloat8_values, small_float, widen
from opdump.dump_file.stored_bytes import MOST_DIMENSIONS, Bytes
from opdump.errors import UndecodableTensorError

# By the name in the enumeration. UNDEFINED has no element type, so its bytes are the elements.
_NATIVE: Final[Mapping[str, str]] = {
    **dict.fromkeys(("UNDEFINED", "INT8", "QINT8", "DUAL_SUB_INT8"), "i1"),
    **dict.fromkeys(("UINT8", "QUINT8", "DUAL_SUB_UINT8"), "u1"),
    **dict.fromkeys(("INT16", "QINT16"), "i2"),
    **dict.fromkeys(("UINT16", "QUINT16"), "u2"),
    **dict.fromkeys(("INT32", "QINT32"), "i4"),
    **dict.fromkeys(("INT64", "RESOURCE"), "i8"),
    "UINT32": "u4",
    "UINT64": "u8",
    "BOOL": "?",
    "FLOAT16": "f2",
    "FLOAT": "f4",
    "DOUBLE": "f8",
    "COMPLEX64": "c8",
    "COMPLEX128": "c16",
}
_ML_DTYPES: Final[Mapping[str, str]] = {
    "FLOAT8_E5M2": "float8_e5m2",
    "FLOAT8_E4M3FN": "float8_e4m3fn",
    "FLOAT8_E8M0": "float8_e8m0fnu",
    "FLOAT6_E3M2": "float6_e3m2fn",
    "FLOAT6_E2M3": "float6_e2m3fn",
    "FLOAT4_E2M1": "float4_e2m1fn",
}
# Three bytes of FLOAT6 contain four elements; this many groups stay in the cache.
_GROUPS_AT_ONCE: Final = 1 << 14


def decode_elements(data: Bytes, number: int, shape: tuple[int, ...], name: str) -> npt.NDArray[Any]:
    """The elements of a tensor of that type and shape, as `DumpTensor.to_host` returns them; `name` is used in errors."""
    kind = data_type(number)
    raw = np.frombuffer(data.read(), np.uint8)
    if kind.bits == 0:
        return raw
    available = len(raw) * 8 // kind.bits
    where = f"{data.path}: {name}" if data.path else name
    if kind.name == "UNDEFINED":
        shape = (len(raw),)
    elif not shape and len(raw) != (kind.bits + 7) // 8:
        shape = (available,)
    if len(shape) > MOST_DIMENSIONS:
        raise UndecodableTensorError(
            f"{where}: its shape has {len(shape)} dimensions; expected at most {MOST_DIMENSIONS}"
        )
    count = math.prod(shape)
    if count > available:
        raise UndecodableTensorError(
            f"{where}: {len(raw)} bytes of {kind.name} hold {available} elements; its shape {shape} needs {count}: "
            "the header is wrong, or the tensor was not copied whole"
        )
    elements = _decoder(kind.name)(raw[: (count * kind.bits + 7) // 8], count)
    try:
        result = elements.reshape(shape)
    except (ValueError, OverflowError) as error:
        raise UndecodableTensorError(f"{where}: numpy has no array of its shape {shape} ({error})") from error
    result.flags.writeable = False
    return result


def encode_elements(array: npt.NDArray[Any], number: int) -> bytes:
    """The bytes of `array` as elements of that type, in C order; the inverse of decoding.

    Accepts arrays of numbers, including those of `ml_dtypes`, and arrays of bytes for types of unknown size (text). Raises
    UndecodableTensorError if the type cannot represent a value: nothing is rounded.
    """
    kind = data_type(number)
    flat = np.ascontiguousarray(array).reshape(-1)
    if kind.bits == 0:
        if flat.dtype != np.uint8:
            raise UndecodableTensorError(
                f"{kind.name}: elements of unknown size are written from bytes (uint8), not {flat.dtype}"
            )
        return flat.tobytes()
    flat = _numbers(flat, kind.name)
    native = _NATIVE.get(kind.name)
    if native is not None:
        return _exactly(flat, np.dtype(f"<{native}"), kind.name).tobytes()
    if kind.name == "BF16":
        bits = _exactly(flat, np.dtype("<f4"), kind.name).view("<u4")
        if (bits & 0xFFFF).any():
            raise UndecodableTensorError("BF16: the array holds values that are not bfloat16; round them first")
        return (bits >> 16).astype("<u2").tobytes()
    if kind.name == "COMPLEX32":
        parts = _exactly(flat, np.dtype("<c8"), kind.name).view("<f4")
        return _exactly(parts, np.dtype("<f2"), kind.name).tobytes()
    return _packed(_codes(flat, kind.name), kind.bits, high_first=kind.name == "UINT1")


def _numbers(flat: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """The same values in a type that numpy itself has."""
    if flat.dtype.kind in "biufc":
        return flat
    import ml_dtypes

    own = getattr(ml_dtypes, flat.dtype.name, None)
    if own is None or np.dtype(own) != flat.dtype:
        raise UndecodableTensorError(f"{name}: the array holds {flat.dtype}; numbers were expected")
    return flat.astype(np.int8 if flat.dtype.name.startswith(("int", "uint")) else np.float32)


def values_of_codes(name: str) -> npt.NDArray[Any]:
    """The value of every code of a type of at most 8 bits. Raises KeyError for other types."""
    if name == "HIFLOAT8":
        return hifloat8_values()
    if name in ("INT4", "INT2"):
        half = 1 << (int(name[3:]) - 1)
        return ((np.arange(2 * half) + half) % (2 * half) - half).astype(np.int8)
    if name in ("UINT2", "UINT1"):
        return np.arange(1 << int(name[4:]), dtype=np.uint8)
    if name == "FLOAT4_E1M2":
        # One bit of exponent with bias 1: a fixed-point number with a sign and two fractional bits.
        magnitude = np.arange(8, dtype=np.float32) / 4
        return np.concatenate([magnitude, -magnitude])
    kind = small_float(_ML_DTYPES[name])
    bits = int(name[5])
    values: npt.NDArray[Any] = np.arange(1 << bits, dtype=np.uint8).view(kind).astype(np.float32)
    return values


@cache
def _decoder(name: str) -> Callable[[npt.NDArray[np.uint8], int], npt.NDArray[Any]]:
    """A function from bytes and a number of elements to the elements."""
    native = _NATIVE.get(name)
    if native is not None:
        return lambda raw, _: raw.view(f"<{native}")
    if name == "BF16":
        return lambda raw, _: _widened_bfloat16(raw)
    if name == "COMPLEX32":
        return lambda raw, _: raw.view("<f2").astype(np.float32).view(np.complex64)
    if name == "UINT1":
        return lambda raw, count: np.unpackbits(raw, count=count)
    values = values_of_codes(name)
    if len(values) == 256:
        return lambda raw, _: widen(raw, values)
    if len(values) == 64:
        return lambda raw, count: _widened_six_bits(raw, values)[:count]
    table = values.take(_codes_in_byte(len(values).bit_length() - 1))
    return lambda raw, count: widen(raw, table)[:count]


def _widened_bfloat16(raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    halves = np.zeros((len(raw) // 2, 2), "<u2")
    halves[:, 1] = raw.view("<u2")
    return halves.reshape(-1).view(np.float32)


def _codes_in_byte(bits: int) -> npt.NDArray[np.uint8]:
    """The codes in each byte, in order: 256 rows."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes: npt.NDArray[np.uint8] = (np.arange(256, dtype=np.uint8)[:, None] >> shifts) & np.uint8((1 << bits) - 1)
    return codes


def _widened_six_bits(raw: npt.NDArray[np.uint8], values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Three bytes contain two pairs of codes, of 12 bits each: the table of all pairs is small."""
    codes = np.arange(1 << 12)
    pairs = np.stack([values[codes & 63], values[codes >> 6]], axis=1).view(np.uint64).reshape(-1)
    groups = -(-len(raw) // 3)
    result = np.empty((groups, 2), np.uint64)
    for start in range(0, groups, _GROUPS_AT_ONCE):
        part = raw[start * 3 : (start + _GROUPS_AT_ONCE) * 3]
        if len(part) % 3:
            part = np.concatenate([part, np.zeros(-len(part) % 3, np.uint8)])
        low, middle, high = part.reshape(-1, 3).T.astype(np.uint16)
        chunk = result[start : start + _GROUPS_AT_ONCE]
        # No code is out of range; "clip" avoids a numpy buffer that "raise" needs.
        chunk[:, 0] = pairs.take(low | (middle & 15) << 8, mode="clip")
        chunk[:, 1] = pairs.take(middle >> 4 | high << 4, mode="clip")
    return result.reshape(-1).view(values.dtype)


def _packed(codes: npt.NDArray[np.uint8], bits: int, *, high_first: bool) -> bytes:
    """Codes of `bits` bits, packed in order."""
    each: npt.NDArray[np.uint8] = np.unpackbits(codes[:, None], axis=1, bitorder="little")[:, :bits]
    if high_first:
        return np.packbits(each.reshape(-1), bitorder="big").tobytes()
    return np.packbits(each.reshape(-1), bitorder="little").tobytes()


def _codes(flat: npt.NDArray[Any], name: str) -> npt.NDArray[np.uint8]:
    try:
        values = values_of_codes(name)
    except KeyError:
        raise UndecodableTensorError(f"{name}: opdump cannot write elements of this type") from None
    wide = (_real(flat, name) if flat.dtype.kind == "c" else flat).astype(np.float64)
    order = np.argsort(values, kind="stable")
    # NaN sorts last; -0.0 and 0.0 are equal and differ only in their sign.
    found = order[np.minimum(np.searchsorted(values[order].astype(np.float64), wide), len(values) - 1)]
    found = np.where(np.isnan(wide), order[-1], found)
    zeros = np.flatnonzero(values == 0)
    negative = [code for code in zeros if np.signbit(float(values[code]))]
    positive = [code for code in zeros if not np.signbit(float(values[code]))]
    is_zero = wide == 0
    if positive:
        found = np.where(is_zero, positive[0], found)
    if negative:
        found = np.where(is_zero & np.signbit(wide), negative[0], found)
    same = (values[found].astype(np.float64) == wide) | (np.isnan(values[found].astype(np.float64)) & np.isnan(wide))
    _refuse_others(same, flat, name)
    codes: npt.NDArray[np.uint8] = found.astype(np.uint8)
    return codes


def _exactly(flat: npt.NDArray[Any], wanted: np.dtype[Any], name: str) -> npt.NDArray[Any]:
    if flat.dtype == wanted:
        return flat
    if flat.dtype.kind == "c" and wanted.kind != "c":
        flat = _real(flat, name)
    with np.errstate(all="ignore"):
        converted = flat.astype(wanted)
        back = converted if wanted.kind == "c" else converted.astype(flat.dtype)
    same = (back == flat) | ((back != back) & (flat != flat))  # noqa: PLR0124  # NaN
    if flat.dtype.kind in "iu" and wanted.kind in "iu":
        same &= (converted < 0) == (flat < 0)  # -1 and 255 have the same byte
    _refuse_others(same, flat, name)
    return converted


def _real(flat: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    _refuse_others(flat.imag == 0, flat, name)
    return flat.real


def _refuse_others(same: npt.NDArray[np.bool_], flat: npt.NDArray[Any], name: str) -> None:
    if not same.all():
        raise UndecodableTensorError(
            f"{name}: {flat[~same][0]} is not a value of this type; round or convert the array first"
        )
