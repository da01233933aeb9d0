"""Writes dump files, byte for byte like a device.

A file appears completely or not at all. The header has its fields in the order of their numbers, as every protobuf writer
produces them.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from opdump.dump_file.dump_file import DumpBlob, DumpFile, DumpTensor, dump_data
from opdump.dump_file.stored_bytes import Bytes
from opdump.errors import DumpPathError
from opdump.sink.outside import whole_file

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
