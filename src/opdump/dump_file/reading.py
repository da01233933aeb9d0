"""Reads dump files of every variant.

    offset 0     u64      length N of the header
    offset 8     N bytes  message DumpData (`schema.py`), without the bytes of the tensors
    offset 8+N            all inputs, then all outputs, buffers and spaces, each exactly `size` bytes, without a gap

Older files (1.0) are the message alone, with the bytes inside of it; nano devices write tagged fields in place of the message
(`nano.py`). Source: section 5 of the dump specification. More bytes than announced are tolerated, fewer are an error.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from opdump.dump_file.dump_file import DumpBlob, DumpFile, DumpTensor, OriginalOp
from opdump.dump_file.nano import NANO_MAGIC, read_nano
from opdump.dump_file.schema import dump_data
from opdump.dump_file.stored_bytes import Bytes, FileSource, HeldBytes
from opdump.errors import CorruptDumpError

_LONGEST_HEADER = 2**31 - 1
_MOST_DIMENSIONS = 64


def read_dump_file(path: str | os.PathLike[str]) -> DumpFile:
    """The header of a dump file and its tensors, whose bytes are read when they are asked for.

    Raises CorruptDumpError naming the file and what is wrong: no regular file, cut off, a header that is no message, sizes
    beyond the file. One tensor that cannot be decoded is no error here; its `to_host` raises.
    """
    source = FileSource(Path(path))
    if source.size <= 8:
        raise CorruptDumpError(f"{path}: holds {source.size} bytes; a dump file has a header of at least 9")
    start = source.read(0, 12)
    (length,) = struct.unpack_from("<Q", start)
    if source.size >= 16 and bytes(start[8:12]) == NANO_MAGIC:
        return read_nano(source, length)
    if 0 < length <= min(source.size - 8, _LONGEST_HEADER):
        message = _parsed(source.read(8, length))
        if message is not None:
            return _file(source, message, 8 + length)
        problem = f"its header of {length} bytes is no DumpData message"
    else:
        problem = f"it announces a header of {length} bytes in a file of {source.size}"
    legacy = _legacy(source)
    if legacy is None:
        raise CorruptDumpError(f"{path}: is no dump file: {problem}; it was cut off, or another program wrote it")
    return legacy


def is_dump_file(path: str | os.PathLike[str]) -> bool:
    """Whether the file can be read as one, by its header; False for whatever cannot be opened."""
    try:
        read_dump_file(path)
    except CorruptDumpError:
        return False
    return True


def _parsed(header: memoryview) -> Any:
    try:
        return dump_data().FromString(bytes(header))
    except DecodeError:
        return None


def _file(source: FileSource, message: Any, start: int) -> DumpFile:
    position = start
    for entry in (*message.input, *message.output, *message.buffer, *message.space):
        position += entry.size
    if position > source.size:
        raise CorruptDumpError(
            f"{source.path}: holds {source.size} bytes, but its header announces tensors up to byte {position}: "
            "the file was cut off, or the device could not copy a tensor and left its size in the header"
        )
    position = start

    def stored(entry: Any) -> Bytes:
        nonlocal position
        part = source.part(position, entry.size)
        position += entry.size
        return part

    # The order of the bytes.
    inputs = [(entry, stored(entry)) for entry in message.input]
    outputs = [(entry, stored(entry)) for entry in message.output]
    buffers = [(entry, stored(entry)) for entry in message.buffer]
    spaces = [(entry, stored(entry)) for entry in message.space]
    return _assembled(source, message, inputs, outputs, buffers, spaces)


def _legacy(source: FileSource) -> DumpFile | None:
    """A file of version 1.0; None where it is none. Any message would pass for one without a tensor, so one is asked for."""
    message = _parsed(source.read(0, source.size))
    if message is None or not message.version.startswith(b"1.") or not (message.input or message.output):
        return None

    def held(entries: Iterable[Any]) -> list[tuple[Any, Bytes]]:
        return [(entry, HeldBytes(entry.data)) for entry in entries]

    parts = (held(message.input), held(message.output), held(message.buffer), held(message.space))
    return _assembled(source, message, *parts, legacy=True)


_Stored = list[tuple[Any, Bytes]]


def _assembled(
    source: FileSource,
    message: Any,
    inputs: _Stored,
    outputs: _Stored,
    buffers: _Stored,
    spaces: _Stored,
    *,
    legacy: bool = False,
) -> DumpFile:
    return DumpFile(
        inputs=tuple(_input(source, slot, *stored) for slot, stored in enumerate(inputs)),
        outputs=tuple(_output(source, slot, *stored) for slot, stored in enumerate(outputs)),
        buffers=tuple(DumpBlob(data, entry.buffer_type) for entry, data in buffers),
        spaces=tuple(DumpBlob(data, entry.type, entry.arg_index) for entry, data in spaces),
        op_name=_text(message.op_name),
        version=_text(message.version),
        dump_time=message.dump_time,
        attributes=tuple((_text(attr.name), _text(attr.value)) for attr in message.attr),
        dfx_message=_text(message.dfx_message),
        variant="1.0" if legacy else "2.0",
        path=source.path,
    )


def _input(source: FileSource, slot: int, entry: Any, data: Bytes) -> DumpTensor:
    return DumpTensor(
        io="input",
        slot=slot,
        data_type=entry.data_type,
        format=entry.format,
        shape=_shape(source, entry.shape),
        data=data,
        original_shape=_shape(source, entry.original_shape),
        sub_format=entry.sub_format,
        address=entry.address,
        offset=entry.offset,
        arg_index=entry.arg_index,
        input_type=entry.input_type,
    )


def _output(source: FileSource, slot: int, entry: Any, data: Bytes) -> DumpTensor:
    original = entry.original_op
    return DumpTensor(
        io="output",
        slot=slot,
        data_type=entry.data_type,
        format=entry.format,
        shape=_shape(source, entry.shape),
        data=data,
        original_shape=_shape(source, entry.original_shape),
        sub_format=entry.sub_format,
        address=entry.address,
        offset=entry.offset,
        arg_index=entry.arg_index,
        original_op=(
            OriginalOp(_text(original.name), original.output_index, original.data_type, original.format)
            if entry.HasField("original_op")
            else None
        ),
        dim_range=tuple((part.dim_start, part.dim_end) for part in entry.dim_range),
    )


def _shape(source: FileSource, shape: Any) -> tuple[int, ...]:
    if len(shape.dim) > _MOST_DIMENSIONS:
        raise CorruptDumpError(
            f"{source.path}: a tensor of {len(shape.dim)} dimensions; no more than {_MOST_DIMENSIONS} make sense"
        )
    return tuple(shape.dim)


def _text(field: bytes) -> str:
    # Lone surrogates stand for bytes that are no UTF-8: writing gives the same bytes back.
    return field.decode("utf-8", "surrogateescape")
