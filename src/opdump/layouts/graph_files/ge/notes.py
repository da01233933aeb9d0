"""Notes in `.dump_metadata/ge_graphs.json` which graph file belongs to which model of a dump, wherever the file is.

    {"graphs": [{"file": "/home/me/ge_proto_00002_Build.txt", "model_name": "ge_default_20201120163719_2", "model_id": 2,
                 "rule": "IteratorV2", "update": "ApplyAdam"}]}

Graph files are in the directory of the training script, and a dump is usually elsewhere.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from opdump.errors import CorruptDumpError, DumpPathError
from opdump.layouts.graph_files.ge.files import write_whole
from opdump.layouts.graph_files.ge.reading import is_graph_name
from opdump.sink import make_directory

NOTES_NAME: Final = "ge_graphs.json"
_LARGEST: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class GraphNote:
    """A graph file, its model, and the reason that it is the computational graph (empty if it is not).

    `update` is the type of an operator that updates a variable; empty if there is none.
    """

    file: str
    model_name: str
    model_id: int
    rule: str
    update: str = ""


def note_graph(
    metadata_dir: Path, file: Path, model_name: str, model_id: int, rule: str | None, update: str = ""
) -> None:
    """Add a graph file to the notes in `{time}/{device_id}/.dump_metadata`, which is created.

    Only one process, and one thread at a time, may call it for a directory. Raises DumpPathError if it cannot be written, and
    CorruptDumpError if the existing notes are damaged.
    """
    make_directory(metadata_dir)
    notes = [*read_notes(metadata_dir), GraphNote(str(file.absolute()), model_name, model_id, rule or "", update)]
    path = metadata_dir / NOTES_NAME
    try:
        write_whole(path, json.dumps({"graphs": [asdict(note) for note in notes]}, indent=1))
    except OSError as error:
        raise DumpPathError(
            f"{path}: cannot be written ({error.strerror}): free space, or dump into another directory"
        ) from error


def read_notes(metadata_dir: Path) -> tuple[GraphNote, ...]:
    """The notes of a directory; none if there are none.

    The path in a note always has the name of a graph file. Raises CorruptDumpError if the notes cannot be read.
    """
    path = metadata_dir / NOTES_NAME
    if not path.is_file():
        return ()
    try:
        if path.stat().st_size > _LARGEST:
            raise CorruptDumpError(f"{path}: holds more than {_LARGEST} bytes; notes on graph files were expected")
        found = json.loads(path.read_bytes())["graphs"]
        notes = tuple(_note(entry) for entry in found)
    except OSError as error:
        raise CorruptDumpError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise CorruptDumpError(
            f"{path}: holds no notes on graph files ({str(error)[:100]}); remove it, and name the file with --graph"
        ) from error
    for note in notes:
        if not is_graph_name(os.path.basename(note.file)):
            raise CorruptDumpError(f"{path}: {note.file[:100]!r} is the name of no graph file; remove {path}")
    return notes


def _note(entry: Any) -> GraphNote:
    """A note from its JSON. Raises KeyError and TypeError."""
    texts = entry["file"], entry["model_name"], entry["rule"], entry.get("update", "")
    if not all(isinstance(text, str) for text in texts) or not isinstance(entry["model_id"], int):
        raise TypeError("a note has texts and a number")
    return GraphNote(texts[0], texts[1], entry["model_id"], *texts[2:])
