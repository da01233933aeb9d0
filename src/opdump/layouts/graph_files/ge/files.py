"""Writes the files of a model's graph."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from opdump.errors import DumpPathError
from opdump.interpreter.leftovers import temporary_name
from opdump.layouts.graph_files.ge.encoding import encode_json, encode_text, model_of
from opdump.layouts.graph_files.ge.graph import GeGraph
from opdump.sink import make_directory

GRAPH_NAME: Final = "ge_proto_{:05d}_Build.txt"
"""With five digits, every known reader finds it."""
LONG_GRAPH_NAME: Final = "ge_proto_{:08d}_graph_{}_Build.txt"
"""The name in newer graph engines; `precision_tool` does not find it."""
Naming = Literal["ge5", "ge8"]
_MODE: Final = 0o600
_MOST_NUMBERS: Final = 1_000_000


class WrittenGraph(NamedTuple):
    """The path of a written graph, and a warning for the user, if any."""

    path: Path
    warning: str


def write_ge_graph(directory: Path, number: int, graphs: Sequence[GeGraph]) -> Path:
    """Write the text and the JSON of a model's graphs into a directory, which is created; returns the path of the text.

    Raises DumpPathError if they cannot be written.
    """
    make_directory(directory)
    path = directory / GRAPH_NAME.format(number)
    try:
        _write(path, graphs)
    except OSError as error:
        raise DumpPathError(
            f"{path}: cannot be written ({error.strerror}): free space, or dump into another directory"
        ) from error
    return path


def write_new_ge_graph(
    directories: Sequence[Path], first: int, graphs: Sequence[GeGraph], *, naming: Naming = "ge5", graph_id: int = 0
) -> WrittenGraph:
    """The same, with the number `first` or the next one that is free in the directory: files of other runs are never overwritten.

    The first writable directory is used; if it is not the first in the list, `warning` is set. `naming` "ge8" selects the name of
    newer graph engines, `ge_proto_00000001_graph_{graph_id}_Build.txt`. Raises DumpPathError if none is writable.
    """
    failures = []
    for directory in directories:
        try:
            make_directory(directory)
            path = _claimed(directory, first, naming, graph_id)
            try:
                _write(path, graphs)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
        except (OSError, DumpPathError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            failures.append(f"{directory}: the graph cannot be written ({getattr(cause, 'strerror', cause)})")
            continue
        return WrittenGraph(path, f"{'; '.join(failures)}; it is {path}" if failures else "")
    tried = "; ".join(failures) or "no directory was given"
    raise DumpPathError(f"{tried}: name a directory in DUMP_GRAPH_PATH that this user can write")


def _claimed(directory: Path, first: int, naming: Naming, graph_id: int) -> Path:
    """An empty file of the first free number: two processes never get the same one."""
    for number in range(first, first + _MOST_NUMBERS):
        name = GRAPH_NAME.format(number) if naming == "ge5" else LONG_GRAPH_NAME.format(number, graph_id)
        path = directory / name
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE))
        except FileExistsError:
            continue
        return path
    raise FileExistsError(None, f"every number from {first} on is taken")


def _write(path: Path, graphs: Sequence[GeGraph]) -> None:
    """Both files, each completely or not at all."""
    model = model_of(graphs)
    write_whole(path, encode_text(model))
    write_whole(path.with_name(f"{path.name}.json"), encode_json(model))


def write_whole(path: Path, text: str) -> None:
    """Write a file that appears completely or not at all. Raises OSError."""
    unfinished = path.with_name(temporary_name())
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _MODE), "w", encoding="utf-8") as stream:
            stream.write(text)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
