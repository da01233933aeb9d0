"""Converts formats like the original: eighteen pairs, including its errors.

`opdump.formats` has the right conversions. Here FRACTAL_Z with more groups than one device block overwrites elements, FRACTAL_NZ
of more than two dimensions is returned with three, and a slice that fails leaves the data unchanged. See
docs/msaccucmp.md#where-opdump-convert-differs.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opdump.dump_file import (
    DATA_TYPES,
    FORMAT_NAMES,
    FORMAT_NUMBERS,
    DumpFile,
    DumpTensor,
    HeldBytes,
    data_type,
    read_dump_file,
)
from opdump.errors import CorruptDumpError, WrongSizeError
from opdump.msaccucmp.exit_codes import AbortError, CommandError, ExitCode, log
from opdump.sink.npy import read_npy

_RENAMED: Final = {
    15: "DECONV_SP_STRIDE8_TRANS",
    20: "LOOKUP_LOOKUPS",
    21: "LOOKUP_KEYS",
    22: "LOOKUP_VALUE",
    23: "LOOKUP_OUTPUT",
    24: "LOOKUP_HITS",
}
_NAMELESS: Final = frozenset({28, 35, 47, 48, 49})
FORMATS: Final[Mapping[int, str]] = {
    number: _RENAMED.get(number, name) for number, name in FORMAT_NAMES.items() if number not in _NAMELESS
}
"""The formats that have names in the original."""
_FOUR_DIMENSIONS: Final = frozenset({"NCHW", "NHWC", "HWCN"})
_BLOCK: Final = 16

_Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Stored:
    """How a tensor is stored: its shape, the shape in the framework (empty if unknown), and the groups of a convolution."""

    shape: tuple[int, ...]
    wanted: tuple[int, ...] = ()
    groups: int = 0


_Conversion = Callable[[_Array, Stored], _Array]


def format_of(number: int) -> str:
    """The name of a format. Raises CommandError if the original has none."""
    name = FORMATS.get(number)
    if name is None:
        raise CommandError(ExitCode.BAD_FORMAT_PAIR, f"format {number} has no name in this command")
    return name


def effective_format(name: str, shape: tuple[int, ...]) -> str:
    """ND for NCHW, NHWC and HWCN of a shape without four dimensions."""
    return "ND" if name in _FOUR_DIMENSIONS and len(shape) != 4 else name


def can_convert(source: str, target: str) -> bool:
    """Whether the original has a function for the pair."""
    return (source, target) in _PAIRS


def convert_format(source: str, target: str, array: _Array, stored: Stored) -> _Array:
    """The elements in another format.

    Raises CommandError, and ValueError, IndexError or ZeroDivisionError if the shapes do not fit.
    """
    return _PAIRS[source, target](array, stored)


def _transposed(*order: int) -> _Conversion:
    def convert(array: _Array, stored: Stored) -> _Array:
        result: _Array = array.reshape(stored.shape).transpose(order)
        return result

    return convert


def _from_nc1hwc0(target: str) -> _Conversion:
    def convert(array: _Array, stored: Stored) -> _Array:
        n, c1, h, w, c0 = stored.shape
        order, shape = {
            "NCHW": ((0, 1, 4, 2, 3), (n, c1 * c0, h, w)),
            "NHWC": ((0, 2, 3, 1, 4), (n, h, w, c1 * c0)),
            "HWCN": ((2, 3, 1, 4, 0), (h, w, c1 * c0, n)),
        }[target]
        result: _Array = array.reshape(stored.shape).transpose(order).reshape(shape)
        return result

    return convert


def _cut(there: int, wanted: int) -> slice:
    """What the original leaves of a padded dimension: if more is requested than exists, the difference of the two."""
    return slice(None, wanted - there) if wanted != there else slice(None)


def _from_fractal_z(target: str) -> _Conversion:
    def convert(array: _Array, stored: Stored) -> _Array:
        if stored.groups > 1:
            raise ValueError(f"{stored.groups} groups, and only one is read back")
        first, no, ni, c0 = stored.shape
        wanted = stored.wanted
        n, c, h, w = wanted if target == "NCHW" else (wanted[3], wanted[2], wanted[0], wanted[1])
        c1 = first // (h * w)
        six = array.reshape(c1, h, w, no, ni, c0)
        cut_n, cut_c = _cut(no * ni, n), _cut(c1 * c0, c)
        if target == "NCHW":
            padded: _Array = six.transpose(3, 4, 0, 5, 1, 2).reshape(no * ni, c1 * c0, h, w)
            return padded[cut_n, cut_c]
        padded = six.transpose(1, 2, 0, 5, 3, 4).reshape(h, w, c1 * c0, no * ni)
        return padded[:, :, cut_c, cut_n]

    return convert


def _from_fractal_nz(array: _Array, stored: Stored) -> _Array:
    wanted = stored.wanted
    check_nz_shape(stored.shape, wanted)
    *leading, c1, no, ni, c0 = stored.shape
    batch = math.prod(leading)
    rows, columns = wanted[-2:]
    matrices: _Array = array.reshape(batch, c1, no, ni, c0).transpose(0, 2, 3, 1, 4).reshape(batch, no * ni, c1 * c0)
    cut = matrices[:, :rows, :columns]
    return cut.reshape(rows, columns) if len(wanted) <= 2 else cut


def check_nz_shape(shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Raise CommandError if `wanted` cannot be the plain shape of FRACTAL_NZ data of `shape`."""
    if not wanted:
        raise CommandError(ExitCode.BAD_PARAMETER, "FRACTAL_NZ data without an original shape: give it with -s")
    if len(wanted) < 2:
        raise AbortError(f"FRACTAL_NZ data with the shape {wanted}; it has at least two dimensions")
    *leading, c1, no, ni, c0 = shape
    rows, columns = no * ni, c1 * c0
    fits = (
        len(wanted) == len(shape) - 2
        and list(wanted[:-2]) == leading
        and rows - _BLOCK < wanted[-2] <= rows
        and columns - _BLOCK < wanted[-1] <= columns
    )
    if not fits:
        raise CommandError(
            ExitCode.BAD_PARAMETER, f"the shape {wanted} does not belong to FRACTAL_NZ data of shape {shape}"
        )


def _from_ndc1hwc0(target: str) -> _Conversion:
    def convert(array: _Array, stored: Stored) -> _Array:
        n, d, c1, h, w, c0 = stored.shape
        five: _Array = array.reshape(stored.shape).transpose(0, 2, 5, 1, 3, 4).reshape(n, c1 * c0, d, h, w)
        if target == "ND" and len(stored.wanted) != 5:
            return five
        return five[:, _cut(c1 * c0, stored.wanted[1])]

    return convert


def _to_fractal_z(*from_source: int) -> _Conversion:
    """Weights to FRACTAL_Z; `from_source`: the axes N, C, H and W in the source."""

    def convert(array: _Array, stored: Stored) -> _Array:
        weights: _Array = array.reshape(stored.shape).transpose(from_source)
        return _fractal_z(weights, max(stored.groups, 1))

    return convert


def _fractal_z(weights: _Array, groups: int) -> _Array:
    n_all, c, h, w = weights.shape
    n = n_all // groups
    joined = min(math.lcm(math.lcm(c, _BLOCK) // c, math.lcm(n, _BLOCK) // n), groups)
    c1 = -(-joined * c // _BLOCK)
    n1 = -(-joined * n // _BLOCK)
    blocks = -(-groups // joined)
    result = np.zeros((blocks * c1 * h * w, n1, _BLOCK, _BLOCK), weights.dtype)
    rows = np.arange(h * w).reshape(h, w)
    for group in range(groups):
        for channel in range(c):
            dc = group % joined * c + channel
            # The block of the group is multiplied by dc // 16 where C1 belongs: later groups overwrite earlier ones.
            place = (group // joined) * (dc // _BLOCK) * h * w + (dc // _BLOCK) * h * w + rows
            for number in range(n):
                dn = group % joined * n + number
                result[place, dn // _BLOCK, dn % _BLOCK, dc % _BLOCK] = weights[group * n + number, channel]
    return result


_PAIRS: Final[Mapping[tuple[str, str], _Conversion]] = {
    **{("NC1HWC0", target): _from_nc1hwc0(target) for target in ("NCHW", "NHWC", "HWCN")},
    **{("FRACTAL_Z", target): _from_fractal_z(target) for target in ("NCHW", "HWCN")},
    **{("FRACTAL_NZ", target): _from_fractal_nz for target in ("ND", "NCHW", "NHWC")},
    **{("NDC1HWC0", target): _from_ndc1hwc0(target) for target in ("NCDHW", "ND")},
    ("NCHW", "NHWC"): _transposed(0, 2, 3, 1),
    ("NHWC", "NCHW"): _transposed(0, 3, 1, 2),
    ("NHWC", "HWCN"): _transposed(1, 2, 3, 0),
    ("HWCN", "NCHW"): _transposed(3, 2, 0, 1),
    ("HWCN", "NHWC"): _transposed(3, 0, 1, 2),
    ("NCHW", "FRACTAL_Z"): _to_fractal_z(0, 1, 2, 3),
    ("NHWC", "FRACTAL_Z"): _to_fractal_z(0, 3, 1, 2),
    ("HWCN", "FRACTAL_Z"): _to_fractal_z(3, 2, 0, 1),
}


def slice_to(array: _Array, wanted: tuple[int, ...]) -> _Array:
    """The corner of `array` with the shape `wanted`, or less if it is larger; `array` itself if there is nothing to cut.

    Raises CommandError if `wanted` counts as larger: the original compares only the first dimension that differs.
    """
    if not wanted or array.ndim < len(wanted) or tuple(array.shape) == wanted:
        return array
    if math.prod(wanted) == array.size and sum(size != 1 for size in array.shape) <= 1:
        return array
    if array.ndim not in (4, 5):
        return array
    wanted = (*wanted, *(1,) * (array.ndim - len(wanted)))
    if array.shape < wanted:
        raise CommandError(ExitCode.BAD_SHAPE, f"data of shape {array.shape} cannot be cut to {wanted}")
    return array[tuple(slice(size) for size in wanted)]


# Runs the user's own conversions (`-c DIR`), `DIR/format_convert/convert_<SOURCE>_to_<TARGET>.py`.
#
# Each file has `convert(shape_from, shape_to, array)`, with a fourth argument, the number of groups, if the target is FRACTAL_Z.
# The file is executed, which is the purpose of the option. See docs/msaccucmp.md#options-of-convert.

_NAME: Final = re.compile(r"convert_(?P<source>\w+?)_to_(?P<target>\w+)\.py")
_LARGEST: Final = 1 << 20
_MOST_FILES: Final = 1000

Scripts = Mapping[tuple[str, str], Callable[..., Any]]


def load_scripts(folder: str) -> Scripts:
    """The `convert` functions of the directory, by source and target format. Other files are logged and left out.

    Raises AbortError if a script cannot be run.
    """
    place = os.path.join(folder, "format_convert")
    if not os.path.isdir(place):
        return {}
    scripts: dict[tuple[str, str], Callable[..., Any]] = {}
    known = set(FORMATS.values())
    for name in sorted(os.listdir(place))[:_MOST_FILES]:
        path = os.path.join(place, name)
        if not os.path.isfile(path):
            continue
        match = _NAME.fullmatch(name)
        if match is None:
            log("WARNING", f"{path} is not named convert_<SOURCE>_to_<TARGET>.py and is ignored")
            continue
        convert = _convert_function(path)
        if convert is not None and {match["source"], match["target"]} <= known:
            scripts[match["source"], match["target"]] = convert
    return scripts


def run_file(path: str) -> ModuleType:
    """The module in the file. Raises AbortError if it cannot be run."""
    size = os.stat(path).st_size
    if size > _LARGEST:
        raise AbortError(f"{path} holds {size} bytes; a script may have {_LARGEST}")
    with open(path, "rb") as file:
        source = file.read()
    module = ModuleType(os.path.basename(path)[:-3])
    module.__file__ = path
    folder = os.path.dirname(path)
    sys.path.insert(0, folder)
    try:
        exec(compile(source, path, "exec"), module.__dict__)  # noqa: S102  # the option runs the user's own program
    except Exception as error:
        raise AbortError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    finally:
        if folder in sys.path:  # the script may have changed it
            sys.path.remove(folder)
    return module


def _convert_function(path: str) -> Callable[..., Any] | None:
    module = run_file(path)
    convert: object = getattr(module, "convert", None)
    if not callable(convert):
        log("WARNING", f"{path} has no function convert and is ignored")
        return None
    expected = 4 if "to_FRACTAL_Z" in os.path.basename(path) else 3
    found = len(inspect.signature(convert).parameters)
    if found != expected:
        log("WARNING", f"{path}: convert takes {found} arguments instead of {expected}; the file is ignored")
        return None
    return convert


def run_script(
    convert: Callable[..., Any],
    source: str,
    target: str,
    array: npt.NDArray[Any],
    stored: Stored,
) -> npt.NDArray[Any]:
    """The result of the user's function. Raises CommandError if it fails or does not return an array."""
    arguments: list[Any] = [list(stored.shape), list(stored.wanted), array]
    if stored.groups > 1 and "FRACTAL_Z" in (source, target):
        arguments.append(stored.groups)
    result = convert(*arguments)
    if not isinstance(result, np.ndarray):
        raise CommandError(
            ExitCode.SCRIPT_FAILED, f"convert returned {type(result).__name__}; a numpy array was expected"
        )
    return result


# Reads dump files and their tensors like the original, and rejects those that it rejects, with its exit codes.
#
# A file of eight bytes or fewer counts as one without tensors; a file whose name ends in `.npy` counts as one output.

OPDEBUG_PREFIX: Final = "Opdebug.Node_OpDebug."
"""In exactly this case; the original accepts no other spelling."""

_ALLOWED_NAME: Final = re.compile(r"[A-Za-z0-9_./:()=\\-]+")
_LONGEST_COMPONENT: Final = 254
_LONGEST_PATH: Final = 4095
_WARNING_SIZE: Final = 1 << 30
_NOT_IN_NANO: Final = frozenset({0, 33, 34, 35})
"""Types that are read only from other dumps."""
_NPY_TYPES: Final[Mapping[str, int]] = {DATA_TYPES[number].dtype: number for number in (*range(1, 13), 16, 17)}
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

_NATIVE: Final[Mapping[int, np.dtype[Any]]] = {
    0: np.dtype("i1"),
    23: np.dtype("<i8"),
    **{number: np.dtype(data_type(number).dtype).newbyteorder("<") for number in (*range(1, 13), 16, 17)},
}
_UNDEFINED, _BF16, _UINT1, _HIFLOAT8, _E5M2, _E4M3FN = 0, 27, 29, 33, 34, 35
_EIGHT_BIT_FLOATS: Final = frozenset({_HIFLOAT8, _E5M2, _E4M3FN})
_OTHERS: Final[Mapping[int, str]] = {_BF16: "bfloat16", _UINT1: "uint8"}
_TABLE_NAMES: Final[Mapping[int, str]] = {
    _BF16: "bfloat16",
    _UINT1: "uint1",
    _HIFLOAT8: "hifloat8",
    _E5M2: "float8_e5m2",
    _E4M3FN: "float8_e4m3fn",
}


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
