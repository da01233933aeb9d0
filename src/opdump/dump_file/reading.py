"""Reads dump files of every variant.

    offset 0     u64      length N of the header
    offset 8     N bytes  message DumpData (`dump_file.py`), without the bytes of the tensors
    offset 8+N            all inputs, then all outputs, buffers and spaces, each exactly `size` bytes, without a gap

Older files (1.0) are only the message, including the bytes; nano devices write tagged fields instead of the message.
More bytes than announced are accepted, fewer are an error (docs/dump-files.md#damaged-files).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from opdump.dtypes import BY_NAME
from opdump.dump_file.dump_file import DumpBlob, DumpFile, DumpTensor, OriginalOp, dump_data, with_bounded_shapes
from opdump.dump_file.stored_bytes import Bytes, FileSource, HeldBytes, UnreadableBytes
from opdump.errors import CorruptDumpError, WrongSizeError
from opdump.records import IO

# Limits that no device reaches, on the memory that a header may cause. Small headers are not measured.
_LONGEST_HEADER: Final = 1 << 26
_MOST_ENTRIES: Final = 1 << 14
_LONGEST_DESCRIPTIONS: Final = 1 << 21
_SMALL_HEADER: Final = 1 << 14

_PACKED_MAGIC: Final = b"OPDPACK1"
"""The beginning of the file with all elements of a run of opdump's own (`layouts/packed.py`)."""

_NOTHING: Final = HeldBytes(b"")
_NOT_COPIED: Final = "the device had no address to copy them from; dump the operator again"

_OUTPUT, _INPUT, _BUFFER, _SPACE = 3, 4, 5, 8
_DATA_FIELDS: Final[Mapping[int, int]] = {_OUTPUT: 5, _INPUT: 4, _BUFFER: 2, _SPACE: 2}
"""Entries of the message -> the number of their field `data`."""


def read_dump_file(path: str | os.PathLike[str]) -> DumpFile:
    """The header of a dump file and its tensors, whose bytes are read on demand.

    Raises CorruptDumpError with the file name and the problem: not a regular file, cut off, an invalid header, sizes beyond the
    file. A tensor that cannot be decoded is not an error here; its `to_host` raises.
    """
    source = FileSource(Path(path))
    if source.size <= 8:
        raise CorruptDumpError(f"{path}: holds {source.size} bytes; a dump file has a header of at least 9")
    start = source.read(0, 12)
    (length,) = struct.unpack_from("<Q", start)
    if source.size >= 16 and bytes(start[8:12]) == NANO_MAGIC:
        return read_nano(source, length)
    if bytes(start[:8]) == _PACKED_MAGIC:
        raise CorruptDumpError(
            f"{path}: is not a dump file: it has all elements of a packed run; `opdump unpack DUMP -o DIRECTORY` writes a file for each tensor"
        )
    if 0 < length <= source.size - 8:
        message = _parsed(source, 8, length)
        if message is not None:
            return _file(source, message, 8 + length)
        problem = f"its header of {length} bytes is not a DumpData message"
    else:
        problem = f"it announces a header of {length} bytes in a file of {source.size}"
    legacy = _legacy(source)
    if legacy is None:
        raise CorruptDumpError(f"{path}: is not a dump file: {problem}; it was cut off, or another program wrote it")
    return legacy


def _parsed(source: FileSource, start: int, length: int) -> Any:
    """The message; None if the bytes are not a message."""
    if length > _LONGEST_HEADER:
        raise CorruptDumpError(
            f"{source.path}: announces a header of {length} bytes; no device writes more than {_LONGEST_HEADER}"
        )
    header = source.read(start, length)
    from google.protobuf.message import DecodeError

    try:
        if length > _SMALL_HEADER:
            _measure(source, header)
        return dump_data().FromString(bytes(header))
    except (WireError, DecodeError):
        return None


def _measure(source: FileSource, header: memoryview) -> None:
    """Reject a header that would take far more memory than its bytes: many entries, many dimensions."""
    described = 0
    for entries, field in enumerate(fields(header, 0, len(header)), 1):
        if field.number in _DATA_FIELDS:
            described += field.end - field.start
        if _is_too_much(entries, described):
            raise CorruptDumpError(
                f"{source.path}: its header has more than {_MOST_ENTRIES} entries, or describes tensors in more than "
                f"{_LONGEST_DESCRIPTIONS} bytes; no device writes that"
            )


def _is_too_much(entries: int, described: int) -> bool:
    return entries > _MOST_ENTRIES or described > _LONGEST_DESCRIPTIONS


def _file(source: FileSource, message: Any, start: int) -> DumpFile:
    # Keep references, because protobuf creates a new Python object for an entry on each access otherwise.
    inputs, outputs = list(message.input), list(message.output)
    buffers, spaces = list(message.buffer), list(message.space)
    end = start + sum([entry.size for entry in (*inputs, *outputs, *buffers, *spaces)])
    absent = False
    if end > source.size:
        absent = _has_skipped(message, source.size - start)
        if not absent:
            raise CorruptDumpError(
                f"{source.path}: holds {source.size} bytes, but its header announces tensors up to byte {end}: "
                "the file was cut off, or the device could not copy a tensor and left its size in the header"
            )
    position = start

    def stored(entries: list[Any], io: str = "") -> list[Bytes]:
        nonlocal position
        found: list[Bytes] = []
        for slot, entry in enumerate(entries):
            size = entry.size
            if absent and io and size and not entry.address:
                problem = f"{io}:{slot}: its {size} bytes are not in the file: {_NOT_COPIED}"
                found.append(UnreadableBytes(source.path, problem))
            else:
                found.append(source.part(position, size))
                position += size
        return found

    # The order of the bytes.
    parts = stored(inputs, "input"), stored(outputs, "output"), stored(buffers), stored(spaces)
    return _assembled(source, message, *parts)


def _has_skipped(message: Any, available: int) -> bool:
    """Whether all bytes exist except those of tensors without an address, which a device skips but still announces.

    If no tensor has an address, addresses carry no information.
    """
    tensors = [*message.input, *message.output]
    there: int = sum(tensor.size for tensor in tensors if tensor.address)
    others: int = sum(entry.size for entry in (*message.buffer, *message.space))
    return there > 0 and there + others == available


def _legacy(source: FileSource) -> DumpFile | None:
    """A file of version 1.0; None for other files. Any message would pass for one without a tensor, so at least one is required."""
    from google.protobuf.message import DecodeError

    try:
        header, data = _without_data(source)
        message = dump_data().FromString(header)
    except (WireError, DecodeError):
        return None
    if not message.version.startswith(b"1.") or not (message.input or message.output):
        return None
    return _assembled(source, message, data[_INPUT], data[_OUTPUT], data[_BUFFER], data[_SPACE], legacy=True)


def _without_data(source: FileSource) -> tuple[bytes, dict[int, list[Bytes]]]:
    """The message without the bytes of its tensors, and the offsets of these, by the number of their entries."""
    whole = source.read(0, source.size)
    header = bytearray()
    data: dict[int, list[Bytes]] = {number: [] for number in _DATA_FIELDS}
    described = 0

    def keep(target: bytearray, field: Field) -> None:
        if len(header) + len(target) + field.end - field.tag > _LONGEST_HEADER:
            raise WireError("more around its tensors than any device writes")
        target += whole[field.tag : field.end]

    for entries, entry in enumerate(fields(whole, 0, source.size), 1):
        if _is_too_much(entries, described):
            raise WireError("more tensors than any device writes")
        if entry.number not in _DATA_FIELDS or not entry.has_length:
            keep(header, entry)
            continue
        kept = bytearray()
        part: Bytes = _NOTHING
        for field in fields(whole, entry.start, entry.end):
            if field.number == _DATA_FIELDS[entry.number] and field.has_length:
                part = source.part(field.start, field.end - field.start)
                described += field.start - field.tag
            else:
                described += field.end - field.tag
                keep(kept, field)
            if _is_too_much(entries, described):
                raise WireError("more tensors than any device writes")
        data[entry.number].append(part)
        header += varint(entry.number << 3 | 2) + varint(len(kept)) + kept
    return bytes(header), data


def _assembled(
    source: FileSource,
    message: Any,
    inputs: list[Bytes],
    outputs: list[Bytes],
    buffers: list[Bytes],
    spaces: list[Bytes],
    *,
    legacy: bool = False,
) -> DumpFile:
    unknown = _unknown_of if _knows_less(message) else lambda _: b""
    return DumpFile(
        inputs=tuple(
            [_tensor("input", slot, entry, inputs[slot], unknown(entry)) for slot, entry in enumerate(message.input)]
        ),
        outputs=tuple(
            [_tensor("output", slot, entry, outputs[slot], unknown(entry)) for slot, entry in enumerate(message.output)]
        ),
        buffers=tuple(
            [
                DumpBlob(data, entry.buffer_type, unknown=unknown(entry))
                for entry, data in zip(message.buffer, buffers, strict=True)
            ]
        ),
        spaces=tuple(
            [
                DumpBlob(data, entry.type, entry.arg_index, unknown(entry))
                for entry, data in zip(message.space, spaces, strict=True)
            ]
        ),
        op_name=_text(message.op_name),
        version=_text(message.version),
        dump_time=message.dump_time,
        attributes=tuple([(_text(attr.name), _text(attr.value)) for attr in message.attr]),
        dfx_message=_text(message.dfx_message),
        variant="1.0" if legacy else "2.0",
        unknown=unknown(message),
        path=source.path,
    )


def _tensor(io: IO, slot: int, entry: Any, data: Bytes, unknown: bytes) -> DumpTensor:
    is_input = io == "input"
    return with_bounded_shapes(
        DumpTensor(
            io,
            slot,
            entry.data_type,
            entry.format,
            tuple(entry.shape.dim),
            data,
            tuple(entry.original_shape.dim),
            entry.sub_format,
            entry.address,
            entry.offset,
            entry.arg_index,
            original_op=None if is_input else _original_op(entry),
            dim_range=() if is_input else tuple([(part.dim_start, part.dim_end) for part in entry.dim_range]),
            input_type=entry.input_type if is_input else 0,
            unknown=unknown,
        )
    )


def _original_op(output: Any) -> OriginalOp | None:
    if not output.HasField("original_op"):
        return None
    original = output.original_op
    return OriginalOp(_text(original.name), original.output_index, original.data_type, original.format)


def _knows_less(message: Any) -> bool:
    """Whether the message, or one in it, has fields that the schema lacks."""
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    return bool(known.ByteSize() != message.ByteSize())


def _unknown_of(message: Any) -> bytes:
    rest = type(message)()
    rest.CopyFrom(message)
    for field, _ in rest.ListFields():
        rest.ClearField(field.name)
    return bytes(rest.SerializeToString())


def _text(field: bytes) -> str:
    # Lone surrogates represent bytes outside of UTF-8: writing returns the same bytes.
    return field.decode("utf-8", "surrogateescape")


# Reads dump files of nano devices: tagged fields in place of the protobuf header.
#
#     u64 header length | u32 magic | u32 version | tag 4: inputs | tag 5: outputs | bytes of the inputs, then of the outputs
#
# A tag is u32 number, u32 length (docs/dump-files.md#the-header). Element types have the numbers of GE, which are converted to
# those of dump files here; a number that GE does not define becomes negative, so that it cannot be mistaken for another type. The
# file must contain exactly the announced bytes.

NANO_MAGIC: Final = b"\x5a\x5a\x5a\x5a"
_SIDES: Final[Mapping[int, IO]] = {4: "input", 5: "output"}
_SHAPE, _ORIGINAL_SHAPE, _ORIGIN_NAME = 0, 1, 2
_LONGEST_NANO_HEADER: Final = 1 << 22
_GE: Final = (
    *("FLOAT", "FLOAT16", "INT8", "INT32", "UINT8", "", "INT16", "UINT16", "UINT32", "INT64", "UINT64", "DOUBLE"),
    *("BOOL", "STRING", "DUAL_SUB_INT8", "DUAL_SUB_UINT8", "COMPLEX64", "COMPLEX128", "QINT8", "QINT16", "QINT32"),
    *("QUINT8", "QUINT16", "RESOURCE", "STRING_REF", "DUAL", "VARIANT", "BF16", "UNDEFINED", "INT4", "UINT1"),
    *("INT2", "UINT2", "COMPLEX32", "HIFLOAT8", "FLOAT8_E5M2", "FLOAT8_E4M3FN", "FLOAT8_E8M0", "FLOAT6_E3M2"),
    *("FLOAT6_E2M3", "FLOAT4_E2M1", "FLOAT4_E1M2"),
)
"""The names of the element types of GE, by number."""
_DATA_TYPES: Final[Mapping[int, int]] = {number: BY_NAME[name].number for number, name in enumerate(_GE) if name}


class _Fields:
    """Reads numbers in order. Raises CorruptDumpError if the header ends too early."""

    def __init__(self, source: FileSource, data: memoryview) -> None:
        self.source = source
        self.data = data
        self.position = 0

    def __bool__(self) -> bool:
        return self.position < len(self.data)

    def numbers(self, layout: str) -> tuple[int, ...]:
        return struct.unpack(f"<{layout}", self.bytes(struct.calcsize(f"<{layout}")))

    def bytes(self, size: int) -> memoryview:
        end = self.position + size
        if end > len(self.data):
            raise CorruptDumpError(
                f"{self.source.path}: its nano header ends at byte {len(self.data)}, inside a field that ends at byte {end}"
            )
        part = self.data[self.position : end]
        self.position = end
        return part

    def tagged(self) -> tuple[int, _Fields]:
        tag, length = self.numbers("II")
        return tag, _Fields(self.source, self.bytes(length))


def read_nano(source: FileSource, length: int) -> DumpFile:
    """The content of a nano file. Raises CorruptDumpError if sizes contradict each other."""
    if not 8 <= length <= min(source.size - 8, _LONGEST_NANO_HEADER):
        raise CorruptDumpError(f"{source.path}: announces a nano header of {length} bytes in a file of {source.size}")
    fields = _Fields(source, source.read(8, length))
    _, version = fields.numbers("II")
    entries: dict[IO, list[tuple[DumpTensor, int]]] = {"input": [], "output": []}
    while fields:
        tag, inner = fields.tagged()
        if tag in _SIDES:
            io = _SIDES[tag]
            (count,) = inner.numbers("I")
            # Every entry takes bytes of the header, so a wrong count fails at its end.
            for _ in range(count):
                entries[io].append(_entry(inner, io, len(entries[io])))
    end = 8 + length + sum(size for of_side in entries.values() for _, size in of_side)
    if end != source.size:
        raise WrongSizeError(f"{source.path}: holds {source.size} bytes, but its nano header announces {end}")
    position = 8 + length

    def tensors(io: IO) -> tuple[DumpTensor, ...]:
        nonlocal position
        found = []
        for tensor, size in entries[io]:
            found.append(with_bounded_shapes(replace(tensor, data=source.part(position, size))))
            position += size
        return tuple(found)

    return DumpFile(
        inputs=tensors("input"), outputs=tensors("output"), version=str(version), variant="nano", path=source.path
    )


def _entry(fields: _Fields, io: IO, slot: int) -> tuple[DumpTensor, int]:
    """A tensor without its bytes, and their number."""
    kind, layout = fields.numbers("ii")
    fields.numbers("i")  # the address
    origin = fields.numbers("Iii") if io == "output" else (0, 0, 0)
    address, offset, size = fields.numbers("QQQ")
    (length,) = fields.numbers("I")
    inner = _Fields(fields.source, fields.bytes(length))
    shapes: dict[int, tuple[int, ...]] = {}
    name = ""
    while inner:
        tag, value = inner.tagged()
        if tag in (_SHAPE, _ORIGINAL_SHAPE):
            shapes[tag] = value.numbers(f"{len(value.data) // 8}Q")
        elif tag == _ORIGIN_NAME:
            name = bytes(value.data).rstrip(b"\0").decode("utf-8", "surrogateescape")
    tensor = DumpTensor(
        io=io,
        slot=slot,
        data_type=_data_type(kind),
        format=layout,
        shape=shapes.get(_SHAPE, ()),
        data=HeldBytes(b""),
        original_shape=shapes.get(_ORIGINAL_SHAPE, ()),
        address=address,
        offset=offset,
        original_op=OriginalOp(name, origin[0], _data_type(origin[1]), origin[2]) if io == "output" else None,
    )
    return tensor, size


def _data_type(number: int) -> int:
    return _DATA_TYPES.get(number, -abs(number))


# Finds the fields of a protobuf message without building the message.
#
# A header is measured before protobuf turns it into objects: an empty entry takes two bytes on disk and a hundred in memory. Files
# of version 1.0 have the bytes of their tensors inside the message; they are located here and stay in the file.

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_LARGEST_NUMBER: Final = (1 << 29) - 1


class WireError(Exception):
    """The bytes are not a protobuf message."""


class Field(NamedTuple):
    """`tag` is the start of the field, `start` and `end` delimit its value."""

    number: int
    has_length: bool
    tag: int
    start: int
    end: int


def fields(data: memoryview, start: int, end: int) -> Iterator[Field]:
    """The fields between two positions, in the order of the file. Raises WireError for invalid bytes."""
    position = start
    while position < end:
        tag = position
        key, position = _varint(data, position, end)
        kind = key & 7
        value = position
        if kind == _VARINT:
            _, position = _varint(data, position, end)
        elif kind == _LENGTH:
            size, value = _varint(data, position, end)
            position = value + size
        elif kind == _EIGHT_BYTES:
            position += 8
        elif kind == _FOUR_BYTES:
            position += 4
        else:
            raise WireError(f"a field of kind {kind} at byte {tag}")
        if position > end or not 0 < key >> 3 <= _LARGEST_NUMBER:
            raise WireError(f"an invalid field at byte {tag}")
        yield Field(key >> 3, kind == _LENGTH, tag, value, position)


def varint(value: int) -> bytes:
    """A number in protobuf's encoding."""
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    written.append(value)
    return bytes(written)


def _varint(data: memoryview, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
    raise WireError(f"a number that does not end at byte {position}")
