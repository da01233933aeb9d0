"""Reads dump files of nano devices: tagged fields in place of the protobuf header.

    u64 header length | u32 magic | u32 version | tag 4: inputs | tag 5: outputs | bytes of the inputs, then of the outputs

A tag is u32 number, u32 length (docs/dump-files.md#the-header). Element types have the numbers of GE, which are converted to
those of dump files here; a number that GE does not define becomes negative, so that it cannot be mistaken for another type. The
file must contain exactly the announced bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from opdump.dtypes.data_types import BY_NAME
from opdump.dump_file.dump_file import DumpFile, DumpTensor, OriginalOp, with_bounded_shapes
from opdump.dump_file.stored_bytes import FileSource, HeldBytes
from opdump.errors import CorruptDumpError, WrongSizeError
from opdump.records import IO

NANO_MAGIC: Final = b"\x5a\x5a\x5a\x5a"
_SIDES: Final[Mapping[int, IO]] = MappingProxyType({4: "input", 5: "output"})
_SHAPE, _ORIGINAL_SHAPE, _ORIGIN_NAME = 0, 1, 2
_LONGEST_HEADER: Final = 1 << 22
_GE: Final = (
    *("FLOAT", "FLOAT16", "INT8", "INT32", "UINT8", "", "INT16", "UINT16", "UINT32", "INT64", "UINT64", "DOUBLE"),
    *("BOOL", "STRING", "DUAL_SUB_INT8", "DUAL_SUB_UINT8", "COMPLEX64", "COMPLEX128", "QINT8", "QINT16", "QINT32"),
    *("QUINT8", "QUINT16", "RESOURCE", "STRING_REF", "DUAL", "VARIANT", "BF16", "UNDEFINED", "INT4", "UINT1"),
    *("INT2", "UINT2", "COMPLEX32", "HIFLOAT8", "FLOAT8_E5M2", "FLOAT8_E4M3FN", "FLOAT8_E8M0", "FLOAT6_E3M2"),
    *("FLOAT6_E2M3", "FLOAT4_E2M1", "FLOAT4_E1M2"),
)
"""The names of GE's numbers."""
_DATA_TYPES: Final[Mapping[int, int]] = MappingProxyType(
    {number: BY_NAME[name].number for number, name in enumerate(_GE) if name}
)


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
                f"{self.source.path}: its nano header ends at byte {len(self.data)} of itself, inside a field that goes on to {end}"
            )
        part = self.data[self.position : end]
        self.position = end
        return part

    def tagged(self) -> tuple[int, _Fields]:
        tag, length = self.numbers("II")
        return tag, _Fields(self.source, self.bytes(length))


def read_nano(source: FileSource, length: int) -> DumpFile:
    """The content of a nano file. Raises CorruptDumpError if sizes contradict each other."""
    if not 8 <= length <= min(source.size - 8, _LONGEST_HEADER):
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
