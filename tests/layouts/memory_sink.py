"""A sink that keeps the files in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy.typing as npt

from opdump.sink.npy import encode_npy


class MemorySink:
    """Files in a dictionary, `files[relative] == bytes`."""

    def __init__(self) -> None:
        self.root = Path()
        self.files: dict[str, bytes] = {}
        self.files_written = 0
        self.bytes_written = 0

    def write_array(self, relative: str, array: npt.NDArray[Any]) -> None:
        header, elements = encode_npy(array)
        self.write_bytes(relative, header + elements.tobytes())

    def write_bytes(self, relative: str, data: bytes) -> None:
        self.files[relative] = data
        self.files_written += 1
        self.bytes_written += len(data)

    def read(self, relative: str) -> bytes:
        """The content of a file; empty if there is none."""
        return self.files.get(relative, b"")

    def flush(self) -> None: ...

    def close(self) -> None: ...
