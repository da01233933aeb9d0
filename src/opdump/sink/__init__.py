"""Writes the files of a dump into a directory, and npy files.

sink = DirectorySink(Path("/data/dump/rank_0"))
sink.write_array("Net/0/0/MatMul.MatMul-op0.0.0.1795247154245448.output.0.DefaultFormat.npy", array)
sink.close()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opdump.interpreter.late_imports import late_names

if TYPE_CHECKING:
    from opdump.sink.directory import FILE_MODE, DirectorySink
    from opdump.sink.open_directories import make_directory

__all__ = ["FILE_MODE", "DirectorySink", "make_directory"]

__getattr__ = late_names(__name__, ".open_directories", ".directory")
