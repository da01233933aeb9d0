"""The files of a dump in the synchronous layout: their names, those of a rank's directory, and what a path given by the user is."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, cast

from opdump.errors import CorruptDumpError, UnknownLayoutError
from opdump.graph import graph_of_word
from opdump.index.runs import METADATA
from opdump.index.values import inside
from opdump.records import IO, escaped

# Parses and builds file names of the synchronous layout, of both generations.
#
#     mindspore-2.3   Conv2D.Conv2D-op12.0.0.1623124369613540.output.0.DefaultFormat.npy
#     mindspore-2.10  MatMul.Default_fc-Dense_MatMul-op0.0.0.1795247154245448.input.1.DefaultFormat.Float32.npy
#
# Sources: MindSpore's guide to dumps for the first, runs of MindSpore 2.7 and 2.10 for the second. The first names an operator by
# the last component of its full name, the second by the whole name, with `/`, `\`, `.` and space replaced by `_`, and appends the
# element type.

Naming = Literal["mindspore-2.3", "mindspore-2.10"]

LONGEST_NAME = 255
"""Maximum bytes of a file name on Linux file systems; longer names go to mapping.csv."""

PARAMETER = "Parameter"
"""op_type of graph inputs, weights and constants."""

_REPLACED = str.maketrans(
    {
        **dict.fromkeys("/\\. ", "_"),  # as in MindSpore
        **dict.fromkeys(map(chr, range(32)), "_"),  # would break csv files, terminals or the file system
        **dict.fromkeys('",\x7f', "_"),
    }
)
_GRAMMAR = re.compile(
    r"(?P<op_type>[^./]+)\.(?P<op_name>[^/]+)\.(?P<task>[0-9]{1,19})\.(?P<stream>[0-9]{1,19})\.(?P<time>[0-9]{1,19})"
    r"\.(?P<io>input|output)\.(?P<slot>[0-9]{1,9})\.(?P<format>[^./]+)(?:\.(?P<dtype>[^./]+))?\.npy",
    re.ASCII,
)
_SPELLINGS = {"bfloat16": "BFloat16", **{f"uint{bits}": f"UInt{bits}" for bits in (8, 16, 32, 64)}}


@dataclass(frozen=True, slots=True)
class FileName:
    """The parsed name of a tensor's file. `op_name` is as in the file; `dtype` is the token, empty before 2.7."""

    op_type: str
    op_name: str
    task_id: int
    stream_id: int
    timestamp: int
    io: IO
    slot: int
    format: str
    dtype: str = ""

    def __str__(self) -> str:
        """The file name. Parsing it returns an equal object if the parts contain no character that `sanitise` replaces."""
        dtype = f".{self.dtype}" if self.dtype else ""
        return (
            f"{self.op_type}.{self.op_name}.{self.task_id}.{self.stream_id}.{self.timestamp}.{self.io}.{self.slot}."
            f"{self.format}{dtype}.npy"
        )


def parse_file_name(name: str) -> FileName | None:
    """The parts of a tensor's file name in either generation; None for another name."""
    match = _GRAMMAR.fullmatch(name)
    if match is None:
        return None
    return FileName(
        op_type=match["op_type"],
        op_name=match["op_name"],
        task_id=int(match["task"]),
        stream_id=int(match["stream"]),
        timestamp=int(match["time"]),
        io=cast(IO, match["io"]),
        slot=int(match["slot"]),
        format=match["format"],
        dtype=match["dtype"] or "",
    )


def sanitise(name: str) -> str:
    r"""`name` with `/`, `\`, `.` and space as `_` (MindSpore's rule), and so control characters, comma and quote (ours)."""
    return escaped(name).translate(_REPLACED) or "_"


def op_name_in_files(op_type: str, op_name: str, naming: Naming) -> str:
    """The name in files of an operator whose true name is `op_name`.

    A parameter's name is not a scope: it keeps all its components in either generation (`fc1.weight` -> `fc1_weight`).
    """
    if naming == "mindspore-2.3" and op_type != PARAMETER:
        op_name = op_name.rpartition("/")[2]
    return sanitise(op_name)


def dtype_token(dtype: str) -> str:
    """`float32` -> `Float32`, `bfloat16` -> `BFloat16`, `float8_e4m3fn` -> `Float8E4M3FN`."""
    spelling = _SPELLINGS.get(dtype)
    if spelling is not None:
        return spelling
    head, _, tail = dtype.partition("_")
    return sanitise(head.capitalize() + tail.upper().replace("_", ""))


def dtype_of_token(token: str) -> str:
    """`Float32` or `float32` -> `float32`: MindSpore capitalises on CPU but not on Ascend."""
    lower = token.lower()
    if lower.startswith("float8") and len(lower) > 6 and not lower.startswith("float8_"):
        return "float8_" + lower[6:]
    return lower


# Lists the files of a rank's directory by their names.

CONSTANTS: Final = "constants"
MAPPING_NAME: Final = "mapping.csv"
STATISTIC_NAME: Final = "statistic.csv"
_LARGEST_TABLE: Final = 1 << 30
_MOST_DIGITS: Final = 18


@dataclass(frozen=True, slots=True)
class TensorDirectory:
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


def find_places(root: Path) -> tuple[TensorDirectory, ...]:
    """The directories of a rank that can contain tensors, by net, graph and step.

    Raises CorruptDumpError for a link that leads out of `root`.
    """
    places: list[TensorDirectory] = []
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


def place_of(relative: str) -> TensorDirectory | None:
    """The place `{net}/{graph}/{step}` or `{net}/{graph}/constants`; None for another path."""
    net, _, rest = relative.partition("/")
    graph, _, leaf = rest.partition("/")
    graph_id = graph_of_word(graph)
    if graph_id is None or not (_is_number(leaf) or leaf == CONSTANTS):
        return None
    return TensorDirectory(net, graph_id, None if leaf == CONSTANTS else int(leaf), relative)


def list_files(root: Path, place: TensorDirectory) -> PlaceFiles:
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


# Determines what a path given by the user is: a whole dump, a rank, a net, or one iteration.

_RANK: Final = re.compile(r"rank_([0-9]{1,9})", re.ASCII)
_MARKS: Final = (METADATA, "graphs", "execution_order")
_EXPECTED: Final = (
    "expected the directory that was dumped into (it holds rank_0/), one of its rank_N/, a net in it, or an iteration "
    "(rank_0/Net/0/0)"
)


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The directory of a rank; `places` restricts it to a part, None is all of it."""

    root: Path
    rank_id: int
    places: tuple[TensorDirectory, ...] | None = None


def places_at(path: Path) -> tuple[RankPlace, ...]:
    """The ranks that `path` refers to, or none. Raises CorruptDumpError for a rank that is a link out of the dump."""
    try:
        return locate(path)
    except UnknownLayoutError:
        return ()


def locate(path: Path) -> tuple[RankPlace, ...]:
    """The ranks that `path` refers to, by rank.

    Raises UnknownLayoutError with the content of the path, and CorruptDumpError for a rank that is a link out of the dump.
    """
    if not path.exists():
        raise UnknownLayoutError(f"{path}: does not exist; {_EXPECTED}")
    if not path.is_dir():
        raise UnknownLayoutError(f"{path}: is a file; {_EXPECTED}")
    path = path.resolve()
    found = (
        [RankPlace(inside(path, name), rank) for rank, name in _ranks(path) if _is_rank(path / name)]
        or _rank_itself(path)
        or _part_of_rank(path)
        or _loose_part(path)
    )
    if not found:
        raise UnknownLayoutError(f"{path}: holds no dump of a known layout: {_content(path)}; {_EXPECTED}{_hint(path)}")
    return tuple(sorted(found, key=lambda place: place.rank_id))


def _ranks(path: Path) -> list[tuple[int, str]]:
    return [
        (int(match[1]), name) for name in _names(path) if (match := _RANK.fullmatch(name)) and (path / name).is_dir()
    ]


def _is_rank(path: Path) -> bool:
    return any((path / mark).is_dir() for mark in _MARKS) or bool(find_places(path))


def _rank_itself(path: Path) -> list[RankPlace]:
    match = _RANK.fullmatch(path.name)
    if (path / METADATA).is_dir() or (match and _is_rank(path)):
        return [RankPlace(path, int(match[1]) if match else 0)]
    return []


def _part_of_rank(path: Path) -> list[RankPlace]:
    """A net, a graph or an iteration in a rank's directory, so that the index and the graphs are available."""
    for root in list(path.parents)[:3]:
        match = _RANK.fullmatch(root.name)
        if match:
            relative = path.relative_to(root).as_posix()
            places = tuple(place for place in find_places(root) if f"{place.relative}/".startswith(f"{relative}/"))
            return [RankPlace(root, int(match[1]), places)] if places else []
    return []


def _loose_part(path: Path) -> list[RankPlace]:
    """A net or an iteration that was copied out of its rank."""
    step = int(path.name) if path.name.isascii() and path.name.isdigit() and len(path.name) < 19 else 0
    here = TensorDirectory("", 0, step, "")
    files = list_files(path, here)
    if files.tensors or files.statistics is not None:
        return [RankPlace(path, 0, (here,))]
    places = [place for place in find_places(path.parent) if place.net_name == path.name]
    moved = tuple(
        TensorDirectory(place.net_name, place.graph_id, place.step, place.relative.partition("/")[2])
        for place in places
    )
    if any(list_files(path, place).tensors for place in moved):
        return [RankPlace(path, 0, moved)]
    return []


def _names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def _content(path: Path) -> str:
    names = _names(path)
    if not names:
        return "it is empty"
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return f"it holds {', '.join(names[:6])}{more}"


def _hint(path: Path) -> str:
    inner = [child.name for child in path.iterdir() if child.is_dir() and not child.is_symlink() and _ranks(child)]
    return f". Did you mean {path / inner[0]}?" if inner else ""
