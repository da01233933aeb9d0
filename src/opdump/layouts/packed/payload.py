"""Elements that wait in a file of elements."""

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
    """Elements in the record at `offset`, read when they are asked for.

    `dtype` is the original element type and `shape` what the dump promises; a shape of None takes that of the record.
    """

    offset: int
    dtype: str
    shape: tuple[int, ...] | None = None

    def inspect(self) -> None:
        """Raises CorruptDumpError where no whole record is there, or another than the index says; no element is read."""
        self.header()

    def header(self) -> RecordHeader:
        """The header of the record. Raises CorruptDumpError as `inspect` does."""
        return self._checked(read_header(self.path, self.offset))

    def to_host(self) -> npt.NDArray[Any]:
        """The elements as a read-only array; bfloat16 and the 8-bit floats as float32.

        Raises CorruptDumpError naming the file where it is missing, cut off or damaged, or the record is not as promised.
        """
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
    """The elements at the place that an index names: `elements/1.pack@4096`, or a npy file."""
    name, at, offset = file.rpartition("@")
    if at and name.endswith(".pack") and offset.isascii() and offset.isdecimal() and len(offset) < 19:
        return PackedPayload(root, name, int(offset), dtype, shape)
    return FilePayload(root, file, dtype, shape)
