"""Dump files for the tests: any valid file, nano files byte by byte, and the path of files that the real tool has read."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

from opdump.dump_file import (
    DATA_TYPES,
    FORMAT_NAMES,
    Bytes,
    DumpBlob,
    DumpFile,
    DumpTensor,
    HeldBytes,
    OriginalOp,
    read_dump_file,
)
from opdump.dump_file.dump_file import encode_dump_file
from opdump.records import IO

DATA = Path(__file__).parents[1] / "data" / "dump_file"
DEVICE = sorted((DATA / "device").iterdir())
"""Files in the form of a device, which the real tool has read."""

_U64 = st.integers(0, 2**64 - 1)
_U32 = st.integers(0, 2**32 - 1)
_ENUM = st.integers(-(2**31), 2**31 - 1)
_TEXT = st.binary(max_size=12).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
_SHAPE = st.lists(st.integers(0, 5) | _U64, max_size=5).map(tuple)
_BYTES: st.SearchStrategy[Bytes] = st.binary(max_size=40).map(HeldBytes)
_DATA_TYPE = st.sampled_from(sorted(DATA_TYPES)) | _ENUM
_FORMAT = st.sampled_from(sorted(FORMAT_NAMES)) | _ENUM


@st.composite
def tensors(draw: st.DrawFn, io: IO, slot: int) -> DumpTensor:
    is_output = io == "output"
    original = st.none() | st.builds(OriginalOp, name=_TEXT, output_index=_U32, data_type=_DATA_TYPE, format=_FORMAT)
    return DumpTensor(
        io=io,
        slot=slot,
        data_type=draw(_DATA_TYPE),
        format=draw(_FORMAT),
        shape=draw(_SHAPE),
        data=draw(_BYTES),
        original_shape=draw(_SHAPE),
        sub_format=draw(_ENUM),
        address=draw(_U64),
        offset=draw(_U64),
        arg_index=draw(_U32),
        input_type=0 if is_output else draw(_U32),
        original_op=draw(original) if is_output else None,
        dim_range=tuple(draw(st.lists(st.tuples(_U64, _U64), max_size=3))) if is_output else (),
    )


@st.composite
def dump_files(draw: st.DrawFn) -> DumpFile:
    """Any file of variant 2.0 or 1.0; a 1.0 file has a tensor, without which it could not be told from other messages."""
    legacy = draw(st.booleans())
    inputs, outputs = draw(st.tuples(st.integers(1 if legacy else 0, 3), st.integers(0, 3)))
    blobs = st.builds(DumpBlob, data=_BYTES, kind=_ENUM)
    return DumpFile(
        inputs=tuple(draw(tensors("input", slot)) for slot in range(inputs)),
        outputs=tuple(draw(tensors("output", slot)) for slot in range(outputs)),
        buffers=tuple(draw(st.lists(blobs, max_size=2))),
        spaces=tuple(draw(st.lists(st.builds(DumpBlob, data=_BYTES, kind=_ENUM, arg_index=_U32), max_size=2))),
        op_name=draw(_TEXT.filter(bool) if legacy else _TEXT),  # a dump file has more than 8 bytes
        version="1.0" if legacy else draw(st.just("2.0") | _TEXT.filter(bool)),
        dump_time=draw(_U64),
        attributes=tuple(draw(st.lists(st.tuples(_TEXT, _TEXT), max_size=2))),
        dfx_message=draw(_TEXT),
        variant="1.0" if legacy else "2.0",
    )


def encoded(file: DumpFile) -> bytes:
    return b"".join(encode_dump_file(file))


def read_bytes(data: bytes, folder: Path) -> DumpFile:
    path = folder / "Add.add.1.2.1700000000000000"
    path.write_bytes(data)
    return read_dump_file(path)


class NanoTensor(NamedTuple):
    """An entry of a nano file, with the enumeration values of GE."""

    data_type: int
    shape: Sequence[int]
    data: bytes
    format: int = 2
    original_shape: Sequence[int] = ()
    name: str = ""
    original: tuple[int, int, int] = (0, 0, 0)
    address: int = 64
    offset: int = 0


def nano_file(inputs: Sequence[NanoTensor] = (), outputs: Sequence[NanoTensor] = (), **changes: Any) -> bytes:
    """A nano file, built from the tables of the specification: u64 length, u32 magic, u32 version, tags, bytes."""

    def tag(number: int, value: bytes) -> bytes:
        return struct.pack("<II", number, len(value)) + value

    def entry(tensor: NanoTensor, *, is_output: bool) -> bytes:
        inner = tag(0, struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape))
        inner += tag(1, struct.pack(f"<{len(tensor.original_shape)}Q", *tensor.original_shape))
        if is_output:
            inner += tag(2, tensor.name.encode())
        fixed = struct.pack("<iii", tensor.data_type, tensor.format, 1)
        fixed += struct.pack("<iii", *tensor.original) if is_output else b""
        return fixed + struct.pack("<QQQI", tensor.address, tensor.offset, len(tensor.data), len(inner)) + inner

    header: bytes = struct.pack("<II", changes.get("magic", 0x5A5A5A5A), changes.get("version", 1))
    for number, entries, is_output in ((4, inputs, False), (5, outputs, True)):
        packed = b"".join(entry(tensor, is_output=is_output) for tensor in entries)
        header += tag(number, struct.pack("<I", changes.get("count", len(entries))) + packed)
    header += changes.get("more", b"")
    data = b"".join(tensor.data for tensor in (*inputs, *outputs))
    length: int = changes.get("length", len(header))
    return struct.pack("<Q", length) + header + data
