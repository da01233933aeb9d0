"""Lists the files of a rank's directory by their names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opdump.errors import CorruptDumpError
from opdump.graph import graph_of_word
from opdump.index.payload import inside
from opdump.layouts.mindspore_sync.names import FileName, parse_file_name

CONSTANTS: Final = "constants"
MAPPING_NAME: Final = "mapping.csv"
STATISTIC_NAME: Final = "statistic.csv"
_LARGEST_TABLE: Final = 1 << 30
_MOST_DIGITS: Final = 18


@dataclass(frozen=True, slots=True)
class Place:
    """A directory with tensors: an iteration of a graph, or (`step` None) the constants of a graph."""

    net_name: str
    graph_id: int
    step: int | None
    relative: str
    """Below the rank's directory; empty if the rank's directory itself is the place."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A tensor's file: its parsed name, and its path relative to the rank's directory."""

    name: FileName
    relative: str


@dataclass(frozen=True, slots=True)
class PlaceFiles:
    """The files of a place, in the order of their time stamps."""

    tensors: tuple[FoundFile, ...]
    arguments: tuple[tuple[str, str], ...]
    """(file name, path relative to the rank's directory) of the files of save_kernel_args."""
    statistics: str | None
    """statistic.csv, relative to the rank's directory."""


def find_places(root: Path) -> tuple[Place, ...]:
    """The directories of a rank that can contain tensors, by net, graph and step.

    Raises CorruptDumpError for a link that leads out of `root`.
    """
    places: list[Place] = []
    for net in _directories(root, root):
        for graph in _directories(root, root / net):
            if graph_of_word(graph) is None:
                continue
            places += filter(
                None, (place_of(f"{net}/{graph}/{leaf}") for leaf in _directories(root, root / net / graph))
            )
    return tuple(
        sorted(places, key=lambda place: (place.net_name, place.graph_id, -1 if place.step is None else place.step))
    )


def place_of(relative: str) -> Place | None:
    """The place `{net}/{graph}/{step}` or `{net}/{graph}/constants`; None for another path."""
    net, _, rest = relative.partition("/")
    graph, _, leaf = rest.partition("/")
    graph_id = graph_of_word(graph)
    if graph_id is None or not (_is_number(leaf) or leaf == CONSTANTS):
        return None
    return Place(net, graph_id, None if leaf == CONSTANTS else int(leaf), relative)


def list_files(root: Path, place: Place) -> PlaceFiles:
    """The tensor files of a place. Files with other names, and temporary files of a killed run, are left out.

    Raises CorruptDumpError for an invalid mapping.csv, and for a mapping.csv or a link that leads out of the dump.
    """
    directory = inside(root, place.relative)
    names = set(_files(root, directory))
    mapped = read_mapping(directory / MAPPING_NAME) if MAPPING_NAME in names else {}
    prefix = f"{place.relative}/" if place.relative else ""
    tensors, arguments = [], []
    for name in names:
        full = mapped.get(name, name)
        if full.endswith(".npy"):
            parsed = parse_file_name(full)
            if parsed is not None:
                tensors.append(FoundFile(parsed, prefix + name))
        elif full.endswith(".json"):
            arguments.append((full, prefix + name))
    tensors.sort(key=lambda file: (file.name.timestamp, file.name.io, file.name.slot, file.relative))
    statistics = prefix + STATISTIC_NAME if STATISTIC_NAME in names else None
    return PlaceFiles(tuple(tensors), tuple(sorted(arguments)), statistics)


def read_mapping(path: Path) -> dict[str, str]:
    """The long names for the short ones of a directory: rows `{random}.npy,{name}` without a header.

    Raises CorruptDumpError for a row of another form; a short name is a plain file name, so it cannot lead elsewhere.
    """
    mapping = {}
    for number, line in enumerate(read_table(path).split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            short, comma, full = line.decode("utf-8").rstrip("\r").partition(",")
        except UnicodeDecodeError as error:
            raise CorruptDumpError(f"{path}, line {number}: is not UTF-8 text") from error
        plain = all(name and "/" not in name and "\0" not in name and name not in (".", "..") for name in (short, full))
        if not comma or not plain:
            raise CorruptDumpError(
                f"{path}, line {number}: {line[:200]!r} is not of the form '1994743515.npy,NAME.npy' with plain file names"
            )
        mapping[short] = full
    return mapping


def read_table(path: Path) -> bytes:
    """The content of a csv file of a dump. Raises CorruptDumpError if it cannot be read or is larger than 1 GiB."""
    try:
        size = path.stat().st_size
        if not path.is_file() or size > _LARGEST_TABLE:
            raise CorruptDumpError(f"{path}: is not a csv file of a dump ({size} bytes)")
        return path.read_bytes()
    except OSError as error:
        raise CorruptDumpError(f"{path}: cannot be read ({error.strerror})") from error


def _directories(root: Path, directory: Path) -> Iterator[str]:
    with _entries(directory) as entries:
        names = [_checked(root, entry) for entry in entries if not entry.name.startswith(".") and _is_directory(entry)]
    yield from sorted(names)


def _files(root: Path, directory: Path) -> Iterator[str]:
    with _entries(directory) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                name = _checked(root, entry)
                if not _is_directory(entry):
                    yield name


def _entries(directory: Path) -> os._ScandirIterator[str]:
    try:
        return os.scandir(directory)
    except OSError as error:
        raise CorruptDumpError(f"{directory}: cannot be listed ({error.strerror})") from error


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to a place that this user may not read
        return False


def _checked(root: Path, entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        inside(root, os.path.relpath(entry.path, root))
    return entry.name


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) <= _MOST_DIGITS
