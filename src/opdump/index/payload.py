"""Reads elements from npy files of a dump, once if they are requested often, and rejects paths outside of the dump."""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
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


_MOST_KEPT: Final = 1 << 27
"""Bytes of elements that are kept at most."""
_SMALL: Final = 1 << 16
"""Larger tensors are mapped from their files, which costs little beside what is done with them, so they are not kept."""


@dataclass(slots=True)
class _Kept:
    """What was read from the files of dumps that do not change: the paths of files, and the elements of small tensors."""

    paths: dict[tuple[Path, str], Path] = field(default_factory=dict)
    elements: OrderedDict[InFile, npt.NDArray[Any]] = field(default_factory=OrderedDict)
    """Those that were used last are at the end."""
    size: int = 0

    def path(self, root: Path, relative: str) -> Path:
        found = self.paths.get((root, relative))
        if found is None:
            found = self.paths[root, relative] = inside(root, relative)
        return found

    def read(self, payload: InFile) -> npt.NDArray[Any]:
        found = self.elements.get(payload)
        if found is not None:
            self.elements.move_to_end(payload)
            return found
        found = payload.read()
        if found.nbytes < _SMALL:
            self.elements[payload] = found
            self.size += found.nbytes
            while self.size > _MOST_KEPT:
                self.size -= self.elements.popitem(last=False)[1].nbytes
        return found


_KEPT: Final[ContextVar[_Kept | None]] = ContextVar("_KEPT", default=None)


@contextmanager
def dumps_unchanged() -> Iterator[None]:
    """Read each small tensor, and resolve the path of each file, only once inside this context: no dump changes there.

    What was read is kept for the calling thread, up to 128 MB. A context inside another one uses what the outer one keeps.
    """
    token = _KEPT.set(_KEPT.get() or _Kept())
    try:
        yield
    finally:
        _KEPT.reset(token)


@dataclass(frozen=True, slots=True)
class InFile:
    """Elements in the file `root`/`relative` of a dump; the base of payloads for each kind of file."""

    root: Path
    relative: str

    @property
    def path(self) -> Path:
        """The resolved path of the file. Raises CorruptDumpError if it is outside of the dump."""
        kept = _KEPT.get()
        return inside(self.root, self.relative) if kept is None else kept.path(self.root, self.relative)

    def to_host(self) -> npt.NDArray[Any]:
        """Return the elements as a read-only array; bfloat16 and the 8-bit floats are float32.

        Raises CorruptDumpError with the path if the file is missing, cut off, of another format, or does not match the index.
        """
        kept = _KEPT.get()
        return self.read() if kept is None else kept.read(self)

    @abstractmethod
    def read(self) -> npt.NDArray[Any]:
        """Read the elements from the file, as `to_host` returns them."""

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
            raise CorruptDumpError(f"{path}: holds shape {header.shape}, but the index has {self.shape}")
        if self.shape is not None and not is_stored_as(self.dtype, header.dtype):
            raise CorruptDumpError(f"{path}: holds {header.dtype}, but the index has {self.dtype}")
        return header

    def read(self) -> npt.NDArray[Any]:
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
