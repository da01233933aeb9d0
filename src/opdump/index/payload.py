"""Reads elements from npy files of a dump, and rejects paths outside of the dump."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt

from opdump.errors import CorruptDumpError
from opdump.sink.npy import NpyHeader, read_npy, read_npy_header

# Types that numpy lacks, by the types in their npy files (from MindSpore's guide: bfloat16 as float32, int4 as int8).
_STORED_AS: Final = {
    "bfloat16": ("float32", "bfloat16"),
    "int4": ("int8",),
    "uint4": ("uint8",),
    "uint1": ("uint8",),
    "complex32": ("complex64",),
    **dict.fromkeys(("qint8", "quint8", "qint32"), ("float32",)),
}
_ITEM_BITS: Final = {"bool": 8, "bfloat16": 16, "complex32": 32, "complex64": 64, "complex128": 128, "uint1": 1}


@dataclass(frozen=True, slots=True)
class InFile:
    """Elements in the file `root`/`relative` of a dump; the base of payloads for each kind of file."""

    root: Path
    relative: str

    @property
    def path(self) -> Path:
        """The resolved path of the file. Raises CorruptDumpError if it is outside of the dump."""
        return inside(self.root, self.relative)

    @property
    def file(self) -> str:
        """The path below the one that the dump was opened with."""
        return os.path.join(self.root, self.relative)


@dataclass(frozen=True, slots=True)
class FilePayload(InFile):
    """Elements in an npy file, read on demand.

    `dtype` is the original element type, and `shape` the shape in the index; a shape of None accepts that of the file.
    """

    dtype: str
    shape: tuple[int, ...] | None = None

    def inspect(self) -> None:
        """Raise CorruptDumpError like `to_host`, without reading elements."""
        self.header()

    def header(self) -> NpyHeader:
        """Read shape and stored element type, without reading elements. Raises CorruptDumpError like `to_host`."""
        path = self.path
        header = read_npy_header(path)
        if self.shape is not None and header.shape != self.shape:
            raise CorruptDumpError(f"{path}: holds shape {header.shape}; the index of the dump says {self.shape}")
        if self.shape is not None and not is_stored_as(self.dtype, header.dtype):
            raise CorruptDumpError(f"{path}: holds {header.dtype}; the index of the dump says {self.dtype}")
        return header

    def to_host(self) -> npt.NDArray[Any]:
        """Read the elements as a read-only array; bfloat16 and the 8-bit floats are float32.

        Raises CorruptDumpError with the path if the file is missing, cut off, not an npy file, or does not match the index.
        """
        self.header()
        return read_npy(self.path)


def inside(root: Path, relative: str) -> Path:
    """Return `root`/`relative` with all links resolved. Raises CorruptDumpError if that is not inside `root`."""
    real_root = os.path.realpath(root)
    if "\0" not in relative and not os.path.isabs(relative):
        path = os.path.realpath(os.path.join(real_root, relative))
        if path == real_root or path.startswith(real_root.rstrip(os.sep) + os.sep):
            return Path(path)
    raise CorruptDumpError(
        f"{root}: the dump refers to {relative[:200]!r}, which is outside of it and is not read. If this is a link on "
        "purpose, replace the link by the files"
    )


def is_stored_as(dtype: str, stored: str) -> bool:
    """Return whether an npy file of element type `stored` can contain tensors of type `dtype`."""
    return dtype == stored or stored in _STORED_AS.get(dtype, ("float32",) if dtype.startswith("float8") else ())


def is_sample(stored: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Return whether a file with shape `stored` can be a sample, the first elements, of a tensor with this shape."""
    return len(stored) == 1 and 0 < stored[0] < math.prod(shape)


def bytes_of(dtype: str, elements: int) -> int:
    """Return the bytes of a tensor in its original type, or 0 if the type is unknown."""
    digits = "".join(character for character in dtype.partition("_")[0] if character.isdigit())
    bits = _ITEM_BITS.get(dtype) or (int(digits) if 0 < len(digits) < 4 else 0)
    return (elements * bits + 7) // 8
