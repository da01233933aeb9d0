"""The files of a model's graph."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from opdump.errors import DumpPathError
from opdump.layouts.ge_graph.encoding import encode_json, encode_text, model_of
from opdump.layouts.ge_graph.graph import GeGraph
from opdump.sink import make_directory

GRAPH_NAME: Final = "ge_proto_{:05d}_Build.txt"
"""With five digits every known reader finds it."""
_MODE: Final = 0o600


def write_ge_graph(directory: Path, number: int, graphs: Sequence[GeGraph]) -> Path:
    """Writes the text and the JSON of a model's graphs into a directory, which is made; returns the path of the text.

    Raises DumpPathError where they cannot be written.
    """
    make_directory(directory)
    model = model_of(graphs)
    path = directory / GRAPH_NAME.format(number)
    for file, text in ((path, encode_text(model)), (path.with_name(f"{path.name}.json"), encode_json(model))):
        unfinished = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            with open(
                os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _MODE), "w", encoding="utf-8"
            ) as stream:
                stream.write(text)
            unfinished.replace(file)
        except OSError as error:
            unfinished.unlink(missing_ok=True)
            raise DumpPathError(
                f"{file}: cannot be written ({error.strerror}): free space, or set 'dump_path' elsewhere"
            ) from error
    return path
