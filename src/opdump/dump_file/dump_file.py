"""A dump file in memory: one execution of one operator on a device.

The whole header is kept, in the order of the file. The bytes of a tensor are read on demand.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from opdump.dtypes import data_type, data_type_number
from opdump.dump_file.stored_bytes import MOST_DIMENSIONS, Bytes, HeldBytes, UnreadableBytes
from opdump.errors import DumpPathError, UnknownFormatError
from opdump.protobuf_messages import Fields, message_classes
from opdump.sink.outside import whole_file

if TYPE_CHECKING:
    import numpy.typing as npt

    from opdump.records import IO

Variant = Literal["2.0", "1.0", "nano"]
"""2.0: u64 length, header, bytes. 1.0: one message, including the bytes. nano: u64 length, tagged fields, bytes."""


@dataclass(frozen=True, slots=True)
class OriginalOp:
    """The operator of the original graph that an output corresponds to."""

    name: str = ""
    output_index: int = 0
    data_type: int = 0
    format: int = 0


@dataclass(frozen=True, slots=True)
class DumpTensor:
    """An input or output in the element type and the format of the device.

    `data_type` and `format` are the numbers in the file; `shape` counts elements in the device's format, `original_shape` in the
    framework's (empty if unknown). `sub_format` is the number of groups of a convolution's weights. There may be more bytes than
    the shape needs, because devices pad. `offset` is often meaningless (an error of the writer), and `address` is the device's.
    """

    io: IO
    slot: int
    data_type: int
    format: int
    shape: tuple[int, ...]
    data: Bytes
    original_shape: tuple[int, ...] = ()
    sub_format: int = 0
    address: int = 0
    offset: int = 0
    arg_index: int = 0
    input_type: int = 0
    original_op: OriginalOp | None = None
    dim_range: tuple[tuple[int, int], ...] = ()
    unknown: bytes = field(default=b"", repr=False)
    """Fields of a later version, as raw bytes; they are written back."""

    @classmethod
    def of(
        cls,
        io: IO,
        slot: int,
        array: npt.NDArray[Any],
        *,
        data_type: str | None = None,
        format: str = "ND",  # noqa: A002  # as the field
        original_shape: tuple[int, ...] = (),
    ) -> DumpTensor:
        """A tensor with the elements of `array` (in C order), whose shape is in `format`.

        `data_type` is a name of the enumeration (`FLOAT16`) or of a record (`float16`); the default is the array's own type.
        Raises UndecodableTensorError if the type cannot represent a value: nothing is rounded.
        """
        from opdump.dump_file.elements import encode_elements

        number = data_type_number(data_type or array.dtype.name)
        return cls(
            io=io,
            slot=slot,
            data_type=number,
            format=format_number(format),
            shape=array.shape,
            data=HeldBytes(encode_elements(array, number)),
            original_shape=original_shape,
        )

    @property
    def is_readable(self) -> bool:
        """False if the device could not copy the bytes, or if the shape is implausible; `to_host` and `data.read` then raise."""
        return not isinstance(self.data, UnreadableBytes)

    @property
    def name(self) -> str:
        """`input:0`, unique within the file."""
        return f"{self.io}:{self.slot}"

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return len(self.data)

    @property
    def dtype(self) -> str:
        """The element type in the spelling of a record: `float16`, `bfloat16`, `float8_e4m3fn`."""
        return data_type(self.data_type).dtype

    @property
    def format_name(self) -> str:
        """`NC1HWC0`; the number if it has no name."""
        return format_name(self.format)

    def to_host(self) -> npt.NDArray[Any]:
        """The elements as a read-only numpy array of `shape`, in the format of the device.

        Types that numpy lacks are widened: bfloat16, 8-, 6- and 4-bit floats to float32 (HiFloat8 too), integers of fewer than 8
        bits to int8 or uint8, COMPLEX32 to complex64. UNDEFINED is returned as int8, and text and other types of unknown element
        size as uint8: all bytes, in one dimension. An empty shape is a scalar if the bytes are one element, otherwise one
        dimension with all elements. The array may be a view of the mapped file.

        Raises UndecodableTensorError if there are fewer bytes than the shape needs, or numpy has no array of that shape.
        """
        from opdump.dump_file.elements import decode_elements

        return decode_elements(self.data, self.data_type, self.shape, self.name)


def with_bounded_shapes(tensor: DumpTensor) -> DumpTensor:
    """The tensor, marked unreadable if a shape has an implausible number of dimensions: computing the product would take minutes."""
    dimensions = max(len(tensor.shape), len(tensor.original_shape))
    if dimensions <= MOST_DIMENSIONS:
        return tensor
    reason = f"{tensor.name}: its shape has {dimensions} dimensions; expected at most {MOST_DIMENSIONS}"
    return replace(tensor, shape=(), original_shape=(), data=UnreadableBytes(tensor.data.path, reason))


@dataclass(frozen=True, slots=True)
class DumpBlob:
    """Bytes without a shape: the L1 buffer or the workspace of an operator. `kind` is the number in the file."""

    data: Bytes
    kind: int = 0
    arg_index: int = 0
    unknown: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class DumpFile:
    """One dump file. `dump_time` is in microseconds since the epoch (milliseconds if msaccucmp wrote it)."""

    inputs: tuple[DumpTensor, ...] = ()
    outputs: tuple[DumpTensor, ...] = ()
    buffers: tuple[DumpBlob, ...] = ()
    spaces: tuple[DumpBlob, ...] = ()
    op_name: str = ""
    """The true name, with slashes; empty in exception files."""
    version: str = "2.0"
    dump_time: int = 0
    attributes: tuple[tuple[str, str], ...] = ()
    dfx_message: str = ""
    variant: Variant = "2.0"
    unknown: bytes = field(default=b"", repr=False)
    """Fields of a later version, as in tensors and blobs; smaller parts (a shape, an attribute) do not keep them."""
    path: Path | None = field(default=None, compare=False)
    """The path that it was read from; None if it was created."""

    @property
    def tensors(self) -> tuple[DumpTensor, ...]:
        """Inputs, then outputs: the order of their bytes."""
        return (*self.inputs, *self.outputs)


# The schema of the header of a dump file: the message `DumpData`, built on first use.
#
# Field numbers are those of the public `dump_data.proto` (docs/dump-files.md#the-header). Enumerations are declared as plain
# integers and text as bytes, which have the same bytes on disk: a number that a later version adds is kept, and so is a name that
# is not UTF-8. Protobuf keeps unknown fields. The descriptors are in a separate pool, so that another library may load its own
# copy.

_FILE: Final = "opdump/dump_data.proto"
_PACKAGE: Final = "toolkit.dumpdata"

_MESSAGES: Final[Mapping[str, Fields]] = {
    "DumpData": (
        ("version", 1, "bytes"),
        ("dump_time", 2, "uint64"),
        ("output", 3, "*OpOutput"),
        ("input", 4, "*OpInput"),
        ("buffer", 5, "*OpBuffer"),
        ("op_name", 6, "bytes"),
        ("attr", 7, "*OpAttr"),
        ("space", 8, "*Workspace"),
        ("dfx_message", 9, "bytes"),
    ),
    "OpOutput": (
        ("data_type", 1, "int32"),
        ("format", 2, "int32"),
        ("shape", 3, "Shape"),
        ("original_op", 4, "OriginalOp"),
        ("data", 5, "bytes"),
        ("size", 6, "uint64"),
        ("original_shape", 7, "Shape"),
        ("sub_format", 8, "int32"),
        ("address", 9, "uint64"),
        ("dim_range", 10, "*DimRange"),
        ("offset", 11, "uint64"),
        ("arg_index", 12, "uint32"),
    ),
    "OpInput": (
        ("data_type", 1, "int32"),
        ("format", 2, "int32"),
        ("shape", 3, "Shape"),
        ("data", 4, "bytes"),
        ("size", 5, "uint64"),
        ("original_shape", 6, "Shape"),
        ("sub_format", 7, "int32"),
        ("address", 8, "uint64"),
        ("offset", 9, "uint64"),
        ("arg_index", 10, "uint32"),
        ("input_type", 11, "uint32"),
    ),
    "OriginalOp": (
        ("name", 1, "bytes"),
        ("output_index", 2, "uint32"),
        ("data_type", 3, "int32"),
        ("format", 4, "int32"),
    ),
    "Shape": (("dim", 1, "*uint64"),),
    "DimRange": (("dim_start", 1, "uint64"), ("dim_end", 2, "uint64")),
    "OpBuffer": (("buffer_type", 1, "int32"), ("data", 2, "bytes"), ("size", 3, "uint64")),
    "Workspace": (("type", 1, "int32"), ("data", 2, "bytes"), ("size", 3, "uint64"), ("arg_index", 4, "uint32")),
    "OpAttr": (("name", 1, "bytes"), ("value", 2, "bytes")),
}


def dump_data() -> Any:
    """The message class of `DumpData`."""
    return _classes()["DumpData"]


@cache
def _classes() -> Mapping[str, Any]:
    return message_classes(_MESSAGES, package=_PACKAGE, file=_FILE, syntax="proto3")


# Numbers and names of tensor formats in dump files: `3` is `NC1HWC0` (docs/dump-files.md#the-header).

_NAMES: Final = (
    *("NCHW", "NHWC", "ND", "NC1HWC0", "FRACTAL_Z", "NC1C0HWPAD", "NHWC1C0", "FSR_NCHW", "FRACTAL_DECONV", "C1HWNC0"),
    *("FRACTAL_DECONV_TRANSPOSE", "FRACTAL_DECONV_SP_STRIDE_TRANS", "NC1HWC0_C04", "FRACTAL_Z_C04", "CHWN"),
    *("FRACTAL_DECONV_SP_STRIDE8_TRANS", "HWCN", "NC1KHKWHWC0", "BN_WEIGHT", "FILTER_HWCK", "HASHTABLE_LOOKUP_LOOKUPS"),
    *("HASHTABLE_LOOKUP_KEYS", "HASHTABLE_LOOKUP_VALUE", "HASHTABLE_LOOKUP_OUTPUT", "HASHTABLE_LOOKUP_HITS"),
    *("C1HWNCoC0", "MD", "NDHWC", "FRACTAL_ZZ", "FRACTAL_NZ", "NCDHW", "DHWCN", "NDC1HWC0", "FRACTAL_Z_3D", "CN", "NC"),
    *("DHWNC", "FRACTAL_Z_3D_TRANSPOSE", "FRACTAL_ZN_LSTM", "FRACTAL_Z_G", "RESERVED", "ALL", "NULL", "ND_RNN_BIAS"),
    *("FRACTAL_ZN_RNN", "YUV", "YUV_A", "NCL", "FRACTAL_Z_WINO", "C1HWC0"),
)
FORMAT_NAMES: Final[Mapping[int, str]] = {**dict(enumerate(_NAMES)), 255: "MAX"}
FORMAT_NUMBERS: Final[Mapping[str, int]] = {name: number for number, name in FORMAT_NAMES.items()}


def format_name(number: int) -> str:
    """The name of a format; the number itself if it has none."""
    return FORMAT_NAMES.get(number, str(number))


def format_number(name: str) -> int:
    """The number of `NC1HWC0`. Raises UnknownFormatError if dump files have no such format."""
    number = FORMAT_NUMBERS.get(name.removeprefix("FORMAT_"))
    if number is None:
        raise UnknownFormatError(f"{name}: dump files have no such format; they have {', '.join(FORMAT_NUMBERS)}")
    return number


# Marks tensors of a dump file as samples, the first elements of larger tensors, by attributes of the file.
#
#     opdump.sample.output.0 = "4,250"        output 0 has some of the elements of a tensor of this shape
#
# Devices do not write these attributes, and their readers ignore them.

_PREFIX: Final = "opdump.sample."
_MOST_DIGITS: Final = 19


def sample_attribute(io: IO, slot: int, shape: Iterable[int]) -> tuple[str, str]:
    """The attribute of a sample; `shape` is that of the whole tensor."""
    return f"{_PREFIX}{io}.{slot}", ",".join(map(str, shape))


def samples_of(file: DumpFile) -> dict[str, tuple[int, ...]]:
    """The shape of the whole tensor, by the name of each sample (`output:0`). Invalid attributes are ignored."""
    stated = {name: value for name, value in file.attributes if name.startswith(_PREFIX)}
    found: dict[str, tuple[int, ...]] = {}
    for tensor in file.tensors if stated else ():
        parts = stated.get(f"{_PREFIX}{tensor.io}.{tensor.slot}", "").split(",")
        if len(parts) > 64 or not all(part.isascii() and part.isdigit() and len(part) < _MOST_DIGITS for part in parts):
            continue
        whole = tuple(map(int, parts))
        if len(tensor.shape) == 1 and tensor.shape[0] < math.prod(whole):
            found[tensor.name] = whole
    return found


# Writes dump files, byte for byte like a device.
#
# A file appears completely or not at all. The header has its fields in the order of their numbers, as every protobuf writer
# produces them.

_SLICE: Final = 1 << 26
# As in files of devices.
_FILE_MODE: Final = 0o600
# Protobuf's limit, minus space for the rest of the message.
_MOST_IN_MESSAGE: Final = 2**31 - 2**24


def write_dump_file(path: str | os.PathLike[str], file: DumpFile) -> None:
    """Write `file` in variant 2.0 or, if `file.variant` says so, 1.0. An existing file is replaced; a device or a pipe receives
    the bytes.

    Raises ValueError for a nano file, which only devices write, for a file of 1.0 with 2 GiB or more, for an empty one, and for a
    number that a header cannot represent (a negative dimension); raises DumpPathError if the file cannot be written.
    """
    target = Path(path)
    try:
        with whole_file(target, _FILE_MODE) as unfinished, unfinished.open("wb") as output:
            for part in encode_dump_file(file):
                view = memoryview(part)
                for start in range(0, len(view), _SLICE):
                    output.write(view[start : start + _SLICE])
    except OSError as error:
        raise DumpPathError(f"{target}: cannot be written ({error.strerror})") from error


def encode_dump_file(file: DumpFile) -> Iterator[bytes | memoryview]:
    """The bytes of the file, in parts."""
    if file.variant == "nano":
        raise ValueError("nano files are only written by devices; replace(file, variant='2.0') makes an ordinary one")
    legacy = file.variant == "1.0"
    parts: tuple[DumpTensor | DumpBlob, ...] = (*file.tensors, *file.buffers, *file.spaces)
    total = sum(len(part.data) for part in parts)
    if legacy and total >= _MOST_IN_MESSAGE:
        raise ValueError(
            f"a file of version 1.0 holds less than 2 GiB, and these tensors have {total} bytes; write 2.0"
        )
    header = _message(file, with_data=legacy).SerializeToString(deterministic=True)
    if not header:
        raise ValueError("a file without a version, a name or a tensor has no header, and could not be read")
    if legacy:
        yield header
        return
    yield struct.pack("<Q", len(header)) + header
    for part in parts:
        if len(part.data):  # a tensor that the device could not copy has no bytes to read
            yield part.data.read()


def _version(file: DumpFile) -> str:
    """The version in the header. Readers recognise a file of 1.0 by it, so it is 1.0 there even if the object has the default."""
    legacy = file.variant == "1.0" and not file.version.startswith("1.")
    return "1.0" if legacy else file.version


def _message(file: DumpFile, *, with_data: bool) -> Any:
    message: Any = dump_data()(
        version=_field(_version(file)),
        dump_time=file.dump_time,
        op_name=_field(file.op_name),
        dfx_message=_field(file.dfx_message),
    )
    entry: Any
    for tensor in file.inputs:
        entry = message.input.add(input_type=tensor.input_type, **_common(tensor, with_data=with_data))
        _fill(entry, tensor)
    for tensor in file.outputs:
        entry = message.output.add(**_common(tensor, with_data=with_data))
        original = tensor.original_op
        if original is not None:
            entry.original_op.SetInParent()
            entry.original_op.name = _field(original.name)
            entry.original_op.output_index = original.output_index
            entry.original_op.data_type = original.data_type
            entry.original_op.format = original.format
        for start, end in tensor.dim_range:
            entry.dim_range.add(dim_start=start, dim_end=end)
        _fill(entry, tensor)
    for blob in file.buffers:
        entry = message.buffer.add(buffer_type=blob.kind, **_stored(blob.data, with_data=with_data))
        entry.MergeFromString(blob.unknown)
    for blob in file.spaces:
        entry = message.space.add(type=blob.kind, arg_index=blob.arg_index, **_stored(blob.data, with_data=with_data))
        entry.MergeFromString(blob.unknown)
    for name, value in file.attributes:
        message.attr.add(name=_field(name), value=_field(value))
    message.MergeFromString(file.unknown)
    return message


def _common(tensor: DumpTensor, *, with_data: bool) -> dict[str, Any]:
    """The common part of inputs and outputs."""
    return {
        "data_type": tensor.data_type,
        "format": tensor.format,
        "sub_format": tensor.sub_format,
        "address": tensor.address,
        "offset": tensor.offset,
        "arg_index": tensor.arg_index,
        **_stored(tensor.data, with_data=with_data),
    }


def _stored(data: Bytes, *, with_data: bool) -> dict[str, Any]:
    return {"size": len(data), "data": bytes(data.read()) if with_data and len(data) else b""}


def _fill(entry: Any, tensor: DumpTensor) -> None:
    if tensor.shape:
        entry.shape.dim.extend(tensor.shape)
    if tensor.original_shape:
        entry.original_shape.dim.extend(tensor.original_shape)
    entry.MergeFromString(tensor.unknown)


def _field(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
