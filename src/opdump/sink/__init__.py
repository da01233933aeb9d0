"""Writes the files of a dump into a directory, and npy files.

sink = DirectorySink(Path("/data/dump/rank_0"))
sink.write_array("Net/0/0/MatMul.MatMul-op0.0.0.1795247154245448.output.0.DefaultFormat.npy", array)
sink.close()
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy.typing as npt

from opdump.sink.directory import FILE_MODE, DirectorySink
from opdump.sink.open_directories import make_directory

__all__ = ["FILE_MODE", "DirectorySink", "Sink", "make_directory"]


class Sink(Protocol):
    """Takes the files of a dump, by paths relative to its root."""

    @property
    def files_written(self) -> int: ...

    @property
    def bytes_written(self) -> int: ...

    def write_array(self, relative: str, array: npt.NDArray[Any]) -> None:
        """File `array` as npy. The sink owns the array from here on: the caller must not change it."""
        ...

    def write_bytes(self, relative: str, data: bytes) -> None:
        """File `data` at once, in place of what had the name before."""
        ...

    def flush(self) -> None:
        """Return when everything that was handed over is written."""
        ...

    def close(self) -> None:
        """Flush and release. Closing twice is allowed."""
        ...
