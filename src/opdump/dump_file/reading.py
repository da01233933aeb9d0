"""Reads dump files of every variant.

    offset 0     u64      length N of the header
    offset 8     N bytes  message DumpData (`schema.py`), without the bytes of the tensors
    offset 8+N            all inputs, then all outputs, buffers and spaces, each exactly `size` bytes, without a gap

Older files (1.0) are only the message, including the bytes; nano devices write tagged fields instead of the message (`nano.py`).
More bytes than announced are accepted, fewer are an error (docs/dump-files.md#damaged-files).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from opdump.dump_file.dump_file import DumpBlob, DumpFile, DumpTensor, OriginalOp, with_bounded_shapes
from opdump.dump_file.nano import NANO_MAGIC, read_nano
from opdump.dump_file.schema import dump_data
from opdump.dump_file.stored_bytes import Bytes, FileSource, HeldBytes, UnreadableBytes
from opdump.dump_file.wire import Field, WireError, fields, varint
from opdump.errors import CorruptDumpError
from opdump.records import IO

# Limits that no device reaches, on the memory that a header may cause. Small headers are not measured.
_LONGEST_HEADER: Final = 1 << 26
_MOST_ENTRIES: Final = 1 << 14
_LONGEST_DESCRIPTIONS: Final = 1 << 21
_SMALL_HEADER: Final = 1 << 14

_PACKED_MAGIC: Final = b"OPDPACK1"
"""The beginning of the file with all elements of a run of opdump's own (`layouts/packed/record.py`)."""

_NOTHING: Final = HeldBytes(b"")
_NOT_COPIED: Final = "the device had no address to copy them from; dump the operator again"

_OUTPUT, _INPUT, _BUFFER, _SPACE = 3, 4, 5, 8
_DATA_FIELDS: Final[Mapping[int, int]] = MappingProxyType({_OUTPUT: 5, _INPUT: 4, _BUFFER: 2, _SPACE: 2})
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
