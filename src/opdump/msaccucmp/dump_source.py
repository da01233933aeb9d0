"""Reads dump files and their tensors like the original, and rejects those that it rejects, with its exit codes.

A file of eight bytes or fewer counts as one without tensors; a file whose name ends in `.npy` counts as one output.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opdump.dump_file import DATA_TYPES, FORMAT_NUMBERS, DumpFile, DumpTensor, HeldBytes, data_type, read_dump_file
from opdump.errors import CorruptDumpError, WrongSizeError
from opdump.msaccucmp.exit_codes import AbortError, CommandError, ExitCode, log
from opdump.sink.npy import read_npy

OPDEBUG_PREFIX: Final = "Opdebug.Node_OpDebug."
"""In exactly this case; the original accepts no other spelling."""

_ALLOWED_NAME: Final = re.compile(r"[A-Za-z0-9_./:()=\\-]+")
_LONGEST_COMPONENT: Final = 254
_LONGEST_PATH: Final = 4095
_WARNING_SIZE: Final = 1 << 30
_NOT_IN_NANO: Final = frozenset({0, 33, 34, 35})
"""Types that are read only from other dumps."""
_NPY_TYPES: Final[Mapping[str, int]] = MappingProxyType(
    {DATA_TYPES[number].dtype: number for number in (*range(1, 13), 16, 17)}
)
"""The types that numpy has."""


def check_path(path: str) -> None:
    """Raise CommandError if the original rejects the spelling of a path."""
    if len(path) > _LONGEST_PATH:
        raise CommandError(ExitCode.BAD_PATH, f"a path of {len(path)} characters; the longest is {_LONGEST_PATH}")
    longest = max(len(part) for part in path.split("/"))
    if longest > _LONGEST_COMPONENT:
        raise CommandError(
            ExitCode.BAD_PATH, f"a file name of {longest} characters in a path; the longest is {_LONGEST_COMPONENT}"
        )
    if not _ALLOWED_NAME.fullmatch(path):
        raise CommandError(
            ExitCode.BAD_PARAMETER,
            f"{path}: only letters, digits and the characters _./:()=\\- may be in a path; rename it",
        )


def read_source(path: str) -> DumpFile:
    """The dump file at `path`. Raises CommandError with the exit code of the original."""
    check_path(path)
    try:
        size = os.stat(path).st_size
    except OSError as error:
        raise CommandError(
            ExitCode.BAD_PATH, f"{path} does not exist or cannot be reached ({error.strerror})"
        ) from error
    if size == 0:
        raise CommandError(ExitCode.BAD_DUMP, f"{path} is empty; a dump file was expected")
    if path.endswith(".npy"):
        return _from_npy(path)
    if size <= 8:
        log("ERROR", f"{path} has {size} bytes, but a dump file has more than 8; it is treated as one without tensors")
        return DumpFile()
    if size > _WARNING_SIZE:
        log("WARNING", f"{path} holds {size} bytes; this may take a while")
    try:
        file = read_dump_file(path)
    except CorruptDumpError as error:
        if _starts_with_no_header(path):
            return DumpFile()
        code = ExitCode.BAD_SIZE if isinstance(error, WrongSizeError) else ExitCode.BAD_DUMP
        raise CommandError(code, str(error)) from error
    if file.variant == "1.0":
        raise CommandError(
            ExitCode.BAD_DUMP,
            f"{path} is a dump of version 1.0, which this command does not read; `opdump convert` does",
        )
    if file.variant == "nano":
        return _named_nano(path, file)
    for text in _texts(file):
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise CommandError(ExitCode.BAD_DUMP, f"{path}: its header contains text that is not UTF-8, {text!r}")
    return file


def _starts_with_no_header(path: str) -> bool:
    """Whether the file announces a header of no bytes, which is a message without fields."""
    try:
        with open(path, "rb") as file:
            return file.read(8) == bytes(8)
    except OSError:
        return False


def _texts(file: DumpFile) -> Iterator[str]:
    yield from (file.version, file.op_name, file.dfx_message)
    for pair in file.attributes:
        yield from pair
    for tensor in file.outputs:
        if tensor.original_op is not None:
            yield tensor.original_op.name


def _named_nano(path: str, file: DumpFile) -> DumpFile:
    """A nano file does not contain the name of its operator; the original uses the last of the five parts of the file's name."""
    parts = os.path.basename(path).split(".")
    if len(parts) < 5:
        raise CommandError(
            ExitCode.BAD_DUMP,
            f"{path} is a nano dump, whose name must have five parts: op_type.op_name.task_id.stream_id.timestamp",
        )
    for tensor in file.tensors:
        if tensor.data_type in _NOT_IN_NANO:
            raise CommandError(
                ExitCode.BAD_DATA_TYPE,
                f"{path}: {tensor.name} has elements of type {tensor.dtype}, unknown in nano dumps",
            )
    return replace(file, op_name=parts[4])


def _from_npy(path: str) -> DumpFile:
    try:
        with open(path, "rb") as file:
            version = np.lib.format.read_magic(file)
            read_header = (
                np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            )
            dtype = read_header(file)[2]
    except Exception as error:  # numpy evaluates the header, and does not catch all resulting exceptions
        raise CommandError(ExitCode.BAD_DUMP, f"{path} is not an npy file ({error})") from error
    if dtype.name not in _NPY_TYPES:
        raise CommandError(
            ExitCode.BAD_DATA_TYPE, f"{path} has elements of type {dtype}, which this command does not read"
        )
    try:
        array = read_npy(path)
    except CorruptDumpError as error:
        raise CommandError(ExitCode.BAD_DUMP, str(error)) from error
    data = HeldBytes(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
    number = _NPY_TYPES[dtype.name]
    return DumpFile(outputs=(DumpTensor("output", 0, number, FORMAT_NUMBERS["RESERVED"], array.shape, data),))


# Finds the slices of FFTS+ tasks: each thread has a slice of the tensors, which the first attribute of the file describes.
#
# The shapes in the header are then replaced by those of the slice of the thread in the file's name:
# `Relu.op.9.3.1700000000000000.4.<context>.<thread>.<device>`.


def slices_of(name: str, file: DumpFile) -> DumpFile:
    """The file with the shapes of its thread's slices; the unchanged file if its attribute requests none.

    Raises AbortError for an invalid attribute, and CommandError if the name has no thread or the number of slices differs from
    the number of tensors.
    """
    if not file.attributes:
        return file
    import json

    try:
        described = json.loads(file.attributes[0][1])
        if not described.get("threadMode"):
            return file
    except (ValueError, AttributeError, RecursionError) as error:
        raise AbortError(f"{name}: its attribute {file.attributes[0][0]!r} is not a JSON object ({error})") from error
    parts = name.split(".")
    if len(parts) < 2 or not parts[-2].isdecimal():
        raise CommandError(ExitCode.BAD_PATH, f"{name}: its name has no thread before its last part")
    thread = int(parts[-2])
    return replace(
        file,
        inputs=_sliced(name, file.inputs, described, "input_tensor_slice", thread),
        outputs=_sliced(name, file.outputs, described, "output_tensor_slice", thread),
    )


def _sliced(
    name: str, tensors: tuple[DumpTensor, ...], described: Any, key: str, thread: int
) -> tuple[DumpTensor, ...]:
    try:
        slices = described[key]
        parts = slices[thread] if slices else slices
        shapes = [tuple(int(bounds["higher"]) - int(bounds["lower"]) for bounds in part) for part in parts]
    except (TypeError, LookupError, ValueError) as error:
        raise AbortError(f"{name}: its attribute has no slice of thread {thread} in {key}") from error
    if len(shapes) != len(tensors):
        raise CommandError(
            ExitCode.BAD_SLICES, f"{name}: its attribute has {len(shapes)} slices in {key} for {len(tensors)} tensors"
        )
    if any(size < 0 for shape in shapes for size in shape):
        raise AbortError(f"{name}: a slice in {key} ends before it begins")
    return tuple(replace(tensor, shape=shape) for tensor, shape in zip(tensors, shapes, strict=True))


# Decodes the bytes of a tensor like the original, including its errors.
#
# The values of the 8-bit floats are not those of the standards (`opdump.dump_file.elements` has these): E4M3FN has no NaN, minus
# infinity is lost in E5M2 and HiFloat8, and HiFloat8 codes with short exponents are read with too many mantissa bits. See
# docs/msaccucmp.md#where-opdump-convert-differs.

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
            f"{tensor.name} has {len(part)} bytes, which is not a whole number of elements of {dtype.itemsize} bytes"
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
