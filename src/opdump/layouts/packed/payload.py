"""Elements in a file of elements, read on demand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from opdump.errors import CorruptDumpError
from opdump.index.payload import FilePayload, InFile, is_stored_as
from opdump.layouts.packed.record import RecordHeader, read_elements, read_header


@dataclass(frozen=True, slots=True)
class PackedPayload(InFile):
    """Elements in the record at `offset`.

    `dtype` is the original element type and `shape` the shape in the dump; None takes that of the record.
    """

    offset: int
    dtype: str
    shape: tuple[int, ...] | None = None

    def inspect(self) -> None:
        """Raises CorruptDumpError if there is no complete record, or one that does not match the index; no element is read."""
        self.header()

    def header(self) -> RecordHeader:
        """The header of the record. Raises CorruptDumpError like `inspect`."""
        return self._checked(read_header(self.path, self.offset))

    def read(self) -> npt.NDArray[Any]:
        header, elements = read_elements(self.path, self.offset)
        self._checked(header)
        return elements

    def _checked(self, header: RecordHeader) -> RecordHeader:
        if self.shape is None:
            return header
        if header.shape != self.shape or not is_stored_as(self.dtype, header.dtype):
            raise CorruptDumpError(
                f"{self.path}: holds {header.dtype} in shape {header.shape} at {self.offset}; the index of the dump says {self.dtype} in "
                f"shape {self.shape}"
            )
        return header


def open_payload(
    root: Path, file: str, dtype: str, shape: tuple[int, ...] | None = None
) -> FilePayload | PackedPayload:
    """The elements at a place in an index: `elements/1.pack@4096`, or an npy file."""
    name, at, offset = file.rpartition("@")
    if at and name.endswith(".pack") and offset.isascii() and offset.isdecimal() and len(offset) < 19:
        return PackedPayload(root, name, int(offset), dtype, shape)
    return FilePayload(root, file, dtype, shape)
