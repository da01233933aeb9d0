"""The records of a file of elements, one after another, each at a multiple of 64 bytes:

      0  b"OPDPACK1"
      8  bytes of this header, with all padding, u32    12  of the name, u16    14  of the element type, u8    15  axes, u8
     16  bytes of the elements, u64                     24  where this record begins in the file, u64
     32  the file, 16 random bytes
     48  hash of the elements, u64                      56  hash of this header, with 0 in this place, u64
     64  the sizes, u64 each; the element type; the name, in UTF-8; zeros up to a multiple of 64
         the elements, little-endian, C order; zeros up to a multiple of 64

A hash is the lower half of 128-bit XXH3. The name is the path that the tensor's file would have in a synchronous dump of
MindSpore: it identifies a record without any index. A reader trusts nothing: a header is checked against the size of the file and
the two hashes before any of it is used.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opdump.errors import CorruptDumpError
from opdump.kernels import xxh3_low_pointer
from opdump.kernels.append_file import ALIGNMENT, HEADER_HASH
from opdump.sink.npy import open_regular

MAGIC: Final = b"OPDPACK1"
HEADER: Final = struct.Struct("<8sIHBBQQ16sQQ")
"""The beginning of each header."""
LARGEST_HEADER: Final = 1 << 17
LARGEST_RANK: Final = 64
_FIRST_READ: Final = 1024
_SMALL: Final = 1 << 16
"""Smaller reads are copied: mapping costs more."""
_CHUNK: Final = 1 << 20
_MOST_CANDIDATES: Final = 10_000
"""Maximum number of positions of a file that are searched for a record after a damaged one."""
STORED: Final = {
    name: np.dtype(np.dtype(name).newbyteorder("<").str)  # in the machine's own order, its name has no order
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
"""The element types that records support, by name."""


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """The header of a record, checked against the file; the elements may still not match their hash."""

    dtype: str
    shape: tuple[int, ...]
    name: str
    offset: int
    """Offset of the elements."""
    data_size: int
    elements_hash: int
    end: int
    """Offset of the next record."""
    file: bytes
    """16 bytes that all records of a file share."""


def encode_header(dtype: str, shape: tuple[int, ...], name: str, data_size: int, file: bytes) -> bytes:
    """The header without its offset and its hashes, which `AppendFile` fills in. Raises KeyError for an unsupported type."""
    named = name.encode("utf-8", "backslashreplace")
    prefix, sizes = type_and_sizes(dtype, shape)
    unpadded = HEADER.size + len(sizes) + len(named)
    whole = -(-unpadded // ALIGNMENT) * ALIGNMENT
    fixed = HEADER.pack(MAGIC, whole, len(named), prefix, len(shape), data_size, 0, file, 0, 0)
    return fixed + sizes + named + bytes(whole - unpadded)


@lru_cache(maxsize=10_000)
def type_and_sizes(dtype: str, shape: tuple[int, ...]) -> tuple[int, bytes]:
    """The bytes of a type and the sizes; a program has few combinations."""
    STORED[dtype]
    return len(dtype), struct.pack(f"<{len(shape)}Q", *shape) + dtype.encode("ascii")


def read_header(path: Path, offset: int) -> RecordHeader:
    """The header of the record at an offset. Raises CorruptDumpError with the file name if there is no complete record."""
    descriptor = open_elements(path)
    try:
        return _header(descriptor, path, offset, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def read_elements(path: Path, offset: int) -> tuple[RecordHeader, npt.NDArray[Any]]:
    """The record at an offset and its elements, read-only and in their shape; large ones are mapped, not read.

    Raises CorruptDumpError with the file name if there is no complete record, or if its elements do not match their hash.
    """
    descriptor = open_elements(path)
    try:
        header = _header(descriptor, path, offset, os.fstat(descriptor).st_size)
        size = header.data_size
        if size < _SMALL:
            data: Any = os.pread(descriptor, size, header.offset)
            start = 0
        else:
            page = header.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
            start = header.offset - page
            data = mmap.mmap(descriptor, start + size, access=mmap.ACCESS_READ, offset=page)
    except (OSError, ValueError) as error:
        raise CorruptDumpError(f"{path}: the elements at {offset} cannot be read ({error})") from error
    finally:
        os.close(descriptor)
    if len(data) != start + size:
        raise CorruptDumpError(f"{path}: shrank while it was read")
    flat = np.frombuffer(data, np.uint8, size, start)
    if size == 0 or xxh3_low_pointer(flat.ctypes.data, size) == header.elements_hash:
        try:
            return header, flat.view(STORED[header.dtype]).reshape(header.shape)
        except ValueError as error:  # more dimensions than numpy supports
            raise CorruptDumpError(f"{path}: numpy has no array of shape {header.shape}: {error}") from error
    raise CorruptDumpError(
        f"{path}: the elements of {header.name[:200]!r} at {offset} are not those that were written: their hash differs. The file was "
        "damaged or overwritten; dump this step again"
    )


def records_of(path: Path) -> Iterator[tuple[int, RecordHeader | CorruptDumpError]]:
    """The complete records of a file, each with its offset; for other bytes among them, what is wrong with these.

    After such bytes, the search continues with the next complete record of the same file. Raises CorruptDumpError if the file
    cannot be opened.
    """
    descriptor = open_elements(path)
    try:
        size = os.fstat(descriptor).st_size
        offset: int | None = 0
        file: bytes | None = None
        candidates = _MOST_CANDIDATES
        while offset is not None and offset < size:
            try:
                header = _header(descriptor, path, offset, size)
            except CorruptDumpError as error:
                yield offset, error
                offset, candidates = _next_record(descriptor, path, offset + ALIGNMENT, size, file, candidates)
                continue
            yield offset, header
            file, offset = header.file, header.end
    finally:
        os.close(descriptor)


def _next_record(
    descriptor: int, path: Path, begin: int, file_size: int, file: bytes | None, candidates: int
) -> tuple[int | None, int]:
    """The offset of the next complete record of that file, from `begin` on, and the number of positions that may still be
    searched.
    """
    for start in range(begin, file_size, _CHUNK):
        chunk = os.pread(descriptor, _CHUNK, start)
        place = chunk.find(MAGIC)
        while place >= 0:
            if place % ALIGNMENT == 0:
                if not candidates:
                    return None, 0
                candidates -= 1
                with suppress(CorruptDumpError):
                    header = _header(descriptor, path, start + place, file_size)
                    if file is None or header.file == file:  # the elements of a tensor may contain a file of elements
                        return start + place, candidates
            place = chunk.find(MAGIC, place + 1)
    return None, candidates


def open_elements(path: Path) -> int:
    """The descriptor of a file of elements. Raises CorruptDumpError if there is none that can be read."""
    return open_regular(path, expected="a file of elements", named="the dump has its elements in this file")


def _header(descriptor: int, path: Path, offset: int, file_size: int) -> RecordHeader:
    where = f"{path}: at {offset}"
    if offset < 0 or offset % ALIGNMENT or offset + HEADER.size > file_size:
        raise CorruptDumpError(f"{where} no record begins: the file has {file_size} bytes; it was cut off")
    start = os.pread(descriptor, _FIRST_READ, offset)
    if len(start) < HEADER.size or not start.startswith(MAGIC):
        raise CorruptDumpError(f"{where} no record begins: it starts with {start[:8]!r}, expected {MAGIC!r}")
    _, length, name_size, type_size, axes, data_size, own, file, elements_hash, header_hash = HEADER.unpack_from(start)
    sizes_end = HEADER.size + 8 * axes
    if not sizes_end + type_size + name_size <= length <= LARGEST_HEADER or length % ALIGNMENT or axes > LARGEST_RANK:
        raise CorruptDumpError(f"{where} the header of a record claims {length} bytes for {axes} axes")
    end = offset + length + -(-data_size // ALIGNMENT) * ALIGNMENT
    if end > file_size:
        raise CorruptDumpError(f"{where} a record claims {end - offset} bytes of a file of {file_size}; it was cut off")
    if length > len(start):
        start = os.pread(descriptor, length, offset)
    raw = bytearray(start[:length])
    raw[HEADER_HASH : HEADER_HASH + 8] = bytes(8)
    if (len(raw), own, hash_of(raw)) != (length, offset, header_hash):
        raise CorruptDumpError(
            f"{where} the header of a record is damaged: its hash differs, or it belongs to another position"
        )
    shape = struct.unpack_from(f"<{axes}Q", raw, HEADER.size)
    dtype = raw[sizes_end : sizes_end + type_size].decode("latin-1")
    if dtype not in STORED or math.prod(shape) * STORED[dtype].itemsize != data_size:
        raise CorruptDumpError(f"{where} a record claims {data_size} bytes of {dtype[:20]!r} in shape {shape}")
    name = raw[sizes_end + type_size : sizes_end + type_size + name_size].decode("utf-8", "replace")
    return RecordHeader(dtype, shape, name, offset + length, data_size, elements_hash, end, file)


def hash_of(data: bytes | bytearray) -> int:
    """The hash of bytes, as in records."""
    flat = np.frombuffer(data, np.uint8)
    return xxh3_low_pointer(flat.ctypes.data, flat.size)
