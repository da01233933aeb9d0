"""Writes npy files with MindSpore's header, and reads npy files without trusting them.

    {'descr': '<f4', 'fortran_order': False, 'shape': (2,3,), }

See docs/files.md#names-of-tensor-files, and numpy's formats 1.0 and 2.0. The reader parses the header itself: it never unpickles or evaluates
anything, and compares the size given by the header with the size of the file before it allocates memory. `<E2`, which MindSpore's CPU writer puts
into bfloat16 files and numpy rejects, is read as bfloat16.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import stat
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opdump.errors import CorruptDumpError
from opdump.npy_header import MAGIC, npy_header

_LARGEST_HEADER = 1 << 20
_LARGEST_RANK = 64
# Smaller files are read at once, because a mapping would cost more than the copy.
_SMALL = 1 << 16

_ENTRY = re.compile(
    r"\s*(?:'descr'\s*:\s*'(?P<descr>[^'\\]{1,16})'|'fortran_order'\s*:\s*(?P<fortran_order>True|False)|"
    r"'shape'\s*:\s*\((?P<shape>[0-9,\sL]*)\))\s*(?:,|(?=\}))"
)
_SHAPE = re.compile(r"[ \t]*(?:[0-9]{1,19}L?[ \t]*,[ \t]*)*(?:[0-9]{1,19}L?[ \t]*)?")
_DESCR = re.compile(r"(?P<byteorder>[<>|=]?)(?P<kind>[biufcE])(?P<size>[0-9]{1,2})")
_HELD = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_DTYPES = {np.dtype(name).str[1:]: name for name in _HELD} | {"E2": "bfloat16"}


def encode_npy(array: npt.NDArray[Any]) -> tuple[bytes, npt.NDArray[np.uint8]]:
    """Return the header and the elements for an npy file: (header, flat uint8 view or copy), little-endian, in C order.

    Raises TypeError for element types that need pickling or have fields (object, string, structured, datetime).
    """
    if array.dtype.kind not in "biufc" or array.dtype.itemsize > 16 or array.dtype.char in "gG":
        raise TypeError(
            f"an npy file of a dump can contain bool, integers, floats and complex numbers, not elements of type "
            f"{array.dtype}: convert the array first, or leave the tensor out with skip='opaque'"
        )
    little = array.dtype.newbyteorder("<")
    contiguous = np.ascontiguousarray(array, dtype=little)
    descr = "|" + array.dtype.str[1:] if array.dtype.itemsize == 1 else "<" + array.dtype.str[1:]
    return npy_header(descr, array.shape), contiguous.reshape(-1).view(np.uint8)


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """The header of an npy file. `dtype` is spelled as in `TensorRecord` (`float32`, `bfloat16`)."""

    dtype: str
    descr: str
    shape: tuple[int, ...]
    fortran_order: bool
    offset: int

    @property
    def data_size(self) -> int:
        return math.prod(self.shape) * int(self.descr[2:])


def read_npy_header(path: str | Path) -> NpyHeader:
    """Read the header of an npy file and compare it with the size of the file.

    Raises CorruptDumpError with the path if it is not a regular file or not an npy file, if its element type cannot be in a dump, or if it has more
    or fewer bytes than the shape requires.
    """
    descriptor = open_regular(path)
    try:
        return _checked_header(descriptor, path)
    finally:
        os.close(descriptor)


def read_npy(path: str | Path) -> npt.NDArray[Any]:
    """Read the elements of an npy file as a read-only array. bfloat16 (`<E2`) is widened to float32.

    Large files are mapped, not read. Raises CorruptDumpError like `read_npy_header`.
    """
    header, flat = read_raw_npy(path)
    if header.dtype == "bfloat16":
        flat = (flat.astype(np.uint32) << np.uint32(16)).view(np.float32)
        flat.flags.writeable = False
    try:
        return flat.reshape(header.shape, order="F" if header.fortran_order else "C")
    except (
        ValueError
    ) as error:  # a dimension of 0 beside others that numpy cannot count, or more dimensions than it has
        raise CorruptDumpError(f"{path}: numpy has no array of shape {header.shape}: {error}") from error


def read_raw_npy(path: str | Path) -> tuple[NpyHeader, npt.NDArray[Any]]:
    """Read the header of an npy file, and its elements as they are stored, flat and read-only. bfloat16 is returned as uint16.

    Large files are mapped, not read. Raises CorruptDumpError like `read_npy_header`.
    """
    descriptor = open_regular(path)
    try:
        header = _checked_header(descriptor, path)
        size = header.data_size
        dtype = np.dtype(header.descr[0] + "u2" if header.dtype == "bfloat16" else header.descr)
        count = math.prod(header.shape)
        if size < _SMALL:
            data = os.pread(descriptor, size, header.offset) if size else b""
            if len(data) != size:
                raise CorruptDumpError(
                    f"{path}: shrank while it was read: found {len(data)} of {size} bytes of elements"
                )
            flat = np.frombuffer(data, dtype=dtype, count=count)
        else:
            mapping = mmap.mmap(descriptor, header.offset + size, access=mmap.ACCESS_READ)
            flat = np.frombuffer(mapping, dtype=dtype, count=count, offset=header.offset)
    finally:
        os.close(descriptor)
    return header, flat


def open_regular(path: str | Path, *, expected: str = "a npy file", named: str = "the dump lists this file") -> int:
    """Open a file of a dump and return its descriptor. Raises CorruptDumpError if it cannot be read; `named` says how the dump refers to it."""
    # O_NONBLOCK: opening a FIFO with a name in .npy must not wait for a writer.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise CorruptDumpError(
            f"{path}: cannot be opened ({error.strerror}): {named}; it was deleted, moved, or its "
            "permissions keep this user out"
        ) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CorruptDumpError(f"{path}: is not a regular file; {expected} was expected")
    return descriptor


def _checked_header(descriptor: int, path: str | Path) -> NpyHeader:
    file_size = os.fstat(descriptor).st_size
    start = os.pread(descriptor, 4096, 0)
    if len(start) < 10 or not start.startswith(MAGIC):
        raise CorruptDumpError(
            f"{path}: is not an npy file: it has {file_size} bytes and starts with {start[:6]!r}, expected {MAGIC!r}"
        )
    major = start[6]
    if major == 1:
        length, prefix = struct.unpack_from("<H", start, 8)[0], 10
    elif major in (2, 3) and len(start) >= 12:
        length, prefix = struct.unpack_from("<I", start, 8)[0], 12
    else:
        raise CorruptDumpError(f"{path}: npy format version {start[6]}.{start[7]}, expected 1.0 or 2.0")
    offset = prefix + length
    if length > _LARGEST_HEADER or offset > file_size:
        raise CorruptDumpError(f"{path}: the npy header claims {length} bytes in a file of {file_size} bytes")
    if offset > len(start):
        start = os.pread(descriptor, offset, 0)
    header = _known_header(start[prefix:offset], offset) or _parse_header(start[prefix:offset], offset, path)
    expected = offset + header.data_size
    if expected != file_size:
        raise CorruptDumpError(
            f"{path}: holds {file_size} bytes, but its header (shape {header.shape}, descr {header.descr!r}) asks for "
            f"{expected}: the file was cut off or overwritten; delete it, or dump this step again"
        )
    return header


@lru_cache(maxsize=4096)
def _known_header(raw: bytes, offset: int) -> NpyHeader | None:
    """Return the header in these bytes, or None if they are invalid. Cached, because the files of a dump have few different headers."""
    try:
        return _parse_header(raw, offset, "")
    except CorruptDumpError:
        return None


def _parse_header(raw: bytes, offset: int, path: str | Path) -> NpyHeader:
    text = raw.decode("latin-1").strip()
    values: dict[str, str] = {}
    position = 1
    while (match := _ENTRY.match(text, position)) and match.lastgroup and match.lastgroup not in values:
        values[match.lastgroup] = match[match.lastgroup]
        position = match.end()
    if len(values) != 3 or text[0] != "{" or text[position:].strip() != "}":
        raise CorruptDumpError(
            f"{path}: the npy header {text[:120]!r} is not of the form "
            "{'descr': '<f4', 'fortran_order': False, 'shape': (2,3,), } (object and structured arrays are never read)"
        )
    parsed = _DESCR.fullmatch(values["descr"])
    dtype = _DTYPES.get(parsed["kind"] + parsed["size"]) if parsed else None
    if parsed is None or dtype is None:
        raise CorruptDumpError(
            f"{path}: elements of type {values['descr']!r}; a dump can contain bool, integers, floats and complex numbers"
        )
    dimensions = re.findall("[0-9]+", values["shape"])
    if len(dimensions) > _LARGEST_RANK or _SHAPE.fullmatch(values["shape"]) is None:
        raise CorruptDumpError(f"{path}: the npy header has the invalid shape ({values['shape'][:120]})")
    byteorder = ">" if parsed["byteorder"] == ">" else "<"
    return NpyHeader(
        dtype=dtype,
        descr=byteorder + parsed["kind"] + parsed["size"],
        shape=tuple(map(int, dimensions)),
        fortran_order=values["fortran_order"] == "True",
        offset=offset,
    )
