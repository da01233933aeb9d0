"""Interprets the directories of a device's dump, and paths given by the user.

The anchor is `{time}`, fourteen digits. `{step_id}` may be above it; below it is `{device_id}`, then any of `{model_name}`,
`{model_id}`, `{data_index}`. One number below a device is a model's, two are a model's and an index, and a word before them is
the name of the model. A numeric directory that contains `{time}` directories is a `{step_id}`.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from opdump.dump_file.names import (
    MAPPING_NAME,
    ConvertedName,
    DumpName,
    ExceptionName,
    FileName,
    NameMapping,
    StatisticsName,
    parse_dump_name,
    parse_name,
    read_mapping,
)
from opdump.errors import CorruptDumpError, UnknownLayoutError
from opdump.graph import PYNATIVE, graph_of_word, graph_word
from opdump.index.opening import INDEX_NAME
from opdump.index.runs import METADATA
from opdump.index.values import inside
from opdump.layouts.mindspore_sync.files import (
    STATISTIC_NAME,
    RankPlace,
    TensorDirectory,
    find_places,
    locate,
    places_at,
)
from opdump.records import IO

_TIME: Final = re.compile(r"[12][0-9]{13}", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,13}", re.ASCII)
_DEVICE: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
_MOST_LEVELS: Final = 3
_EXCEPTIONS: Final = ("extra-info", "data-dump")

EXPECTED: Final = (
    "The dump of an Ascend device is read from {path}/[{step_id}/]{time}/{device_id}[/{model_name}][/{model_id}][/{data_index}], from "
    "any directory of it, and from one that holds files such as Conv2D.conv1.1.5.1732082705016774"
)


@dataclass(frozen=True, slots=True)
class DumpDirectory:
    """A directory that may contain dump files, below the root of its device."""

    relative: str
    """Below the root; empty if the root itself is the place."""
    time: str = ""
    """The {time} directory that contains it; empty if there is none."""
    step_id: int | None = None
    net_name: str = ""
    graph_id: int = 0
    data_index: int | None = None

    @property
    def step(self) -> int:
        """`step_id` if that level exists, otherwise `data_index`, otherwise 0."""
        return self.step_id if self.step_id is not None else self.data_index or 0

    @property
    def has_step(self) -> bool:
        """Whether its directories contain the step."""
        return self.step_id is not None or self.data_index is not None


@dataclass(frozen=True, slots=True)
class DevicePlaces:
    """The places of one device. `base` is the directory above all times, which may contain graph files."""

    root: Path
    base: Path
    rank_id: int
    places: tuple[DumpDirectory, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """The devices that a path refers to, and what could not be read."""

    devices: tuple[DevicePlaces, ...]
    problems: tuple[CorruptDumpError, ...]


def find_devices(path: Path) -> Found:
    """The devices at `path`, if it is a {time} directory, contains some, or is inside one; otherwise none."""
    walk = _Walk(path)
    walk.add_anchored()
    return walk.found()


def find_loose(path: Path) -> Found:
    """The same for a directory copied out of its {time}: a device, a model, one data directory.

    A directory of exceptions (`extra-info/data-dump/{device_id}`) is included.
    """
    walk = _Walk(path)
    walk.add_loose()
    return walk.found()


def started(time: str) -> int:
    """Microseconds since the epoch of a {time} directory, which is in local time; 0 if it is not a valid time."""
    try:
        return int(datetime.strptime(time, "%Y%m%d%H%M%S").astimezone().timestamp()) * 1_000_000
    except (ValueError, OverflowError, OSError):
        return 0


class _Walk:
    """Walks the directories below a path: at most seven levels, and no link out of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.base = path
        self.problems: list[CorruptDumpError] = []
        self._places: dict[int, list[DumpDirectory]] = {}

    def found(self) -> Found:
        devices = tuple(
            DevicePlaces(self.path, self.base, rank, tuple(places)) for rank, places in sorted(self._places.items())
        )
        return Found(devices, tuple(self.problems))

    def add_anchored(self) -> None:
        self._add_below()
        if not self._places:
            self._add_from_above()

    def _add_below(self) -> None:
        own_step = _number(self.path.name)
        for name in self._directories(""):
            if is_time(name):
                if own_step is not None:
                    self.base = self.path.parent
                self._add_time(name, name, own_step)
            elif _NUMBER.fullmatch(name) and self._may_hold_times(name):
                for time in self._directories(name):
                    if is_time(time):
                        self._add_time(f"{name}/{time}", time, int(name))

    def _add_from_above(self) -> None:
        """The path is a {time}, or has one above it."""
        parts = self.path.parts
        for position in range(len(parts) - 1, max(0, len(parts) - 2 - _MOST_LEVELS) - 1, -1):
            below = parts[position + 1 :]
            if is_time(parts[position]) and (not below or _DEVICE.fullmatch(below[0])):
                above = Path(*parts[:position])
                step_id = _number(above.name)
                self.base = above if step_id is None else above.parent
                if below:
                    self._add_device(int(below[0]), "", below[1:], DumpDirectory("", parts[position], step_id))
                else:
                    self._add_time("", parts[position], step_id)
                return

    def add_loose(self) -> None:
        if self._add_exceptions():
            return
        name = self.path.name
        if not _DEVICE.fullmatch(name):
            self._add_device(0, "", (), DumpDirectory(""), copied_model=name)
        elif any(_NUMBER.fullmatch(inner) for inner in self._directories("")):
            self._add_device(int(name), "", (), DumpDirectory(""))
        else:
            self._add_device(0, "", (), DumpDirectory("", data_index=int(name)))

    def _add_exceptions(self) -> bool:
        """Add the devices of operators that failed; returns whether there are some at, above or below the path."""
        for depth in range(len(_EXCEPTIONS) + 1):
            below = _EXCEPTIONS[depth:]
            above = self.path.parts[-depth:] if depth else ()
            if above == _EXCEPTIONS[:depth] and (self.path / Path(*below)).is_dir() and (below or above):
                relative = "/".join(below)
                devices = [name for name in self._directories(relative) if _DEVICE.fullmatch(name)]
                for name in devices:
                    self._add_device(int(name), _joined(relative, name), (), DumpDirectory(""))
                if devices:
                    return True
        return False

    def _add_time(self, relative: str, time: str, step_id: int | None) -> None:
        for name in self._directories(relative):
            if _DEVICE.fullmatch(name):
                self._add_device(int(name), _joined(relative, name), (), DumpDirectory("", time, step_id))

    def _add_device(
        self, rank: int, relative: str, above: Sequence[str], like: DumpDirectory, *, copied_model: str = ""
    ) -> None:
        """Add every directory from `relative` down that contains a file; `above` are the path components between it and the
        device.
        """
        pending: list[tuple[str, tuple[str, ...]]] = [(relative, tuple(above))]
        while pending:
            directory, words = pending.pop()
            meaning = _meaning(words)
            if meaning is None:
                continue
            net_name, graph_id, data_index = meaning
            directories, has_files = self._listed(directory)
            if has_files:
                place = DumpDirectory(
                    directory,
                    like.time,
                    like.step_id,
                    net_name or (copied_model if len(words) == 2 else ""),
                    graph_id,
                    data_index if data_index is not None else like.data_index,
                )
                self._places.setdefault(rank, []).append(place)
            if len(words) < _MOST_LEVELS:
                pending.extend((_joined(directory, name), (*words, name)) for name in reversed(directories))
        if not any(_is_within(place, relative) for place in self._places.get(rank, ())) and self._has_index(relative):
            # Operators that left no file, all of them.
            self._places.setdefault(rank, []).append(DumpDirectory(relative, like.time, like.step_id))

    def _has_index(self, relative: str) -> bool:
        return (self.path / relative / METADATA / INDEX_NAME).is_file()

    def _may_hold_times(self, relative: str) -> bool:
        """Whether it is a {step_id}, judged only by names, because a data directory may have very many files."""
        try:
            with os.scandir(self.path / relative) as entries:
                return any(_TIME.fullmatch(entry.name) for entry in entries)
        except OSError:
            return True  # listing it reports the problem

    def _directories(self, relative: str) -> list[str]:
        return self._listed(relative)[0]

    def _listed(self, relative: str) -> tuple[list[str], bool]:
        directories, has_files = [], False
        for name, is_directory in list_directory(self.path, relative, self.problems):
            if is_directory:
                directories.append(name)
            else:
                has_files = True
        return directories, has_files


def list_directory(root: Path, relative: str, problems: list[CorruptDumpError]) -> Iterator[tuple[str, bool]]:
    """The names in a directory, sorted, each with a flag for directories; hidden ones are left out.

    Unreadable entries, links out of `root`, and names that are not valid text are left out and added to `problems`.
    """
    directory = root / relative if relative else root
    try:
        with os.scandir(directory) as entries:
            found = [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        problems.append(CorruptDumpError(f"{directory}: cannot be listed ({error.strerror}); its files are ignored"))
        return
    for entry in sorted(found, key=lambda entry: entry.name):
        is_directory = _is_directory(root, relative, entry)
        if isinstance(is_directory, bool):
            yield entry.name, is_directory
        else:
            problems.append(is_directory)


def _is_directory(root: Path, relative: str, entry: os.DirEntry[str]) -> bool | CorruptDumpError:
    try:
        entry.name.encode()
        if entry.is_symlink():
            inside(root, _joined(relative, entry.name))
        return entry.is_dir()
    except UnicodeEncodeError:
        return CorruptDumpError(f"{root / relative}: the name {os.fsencode(entry.name)[:200]!r} is not valid UTF-8")
    except CorruptDumpError as error:
        return error
    except OSError as error:
        return CorruptDumpError(f"{entry.path}: cannot be read ({error.strerror})")


def _is_within(place: DumpDirectory, relative: str) -> bool:
    return place.relative == relative or place.relative.startswith(_joined(relative, "") if relative else "")


def is_time(name: str) -> bool:
    """Whether a directory name is a {time}: fourteen digits that are a valid time."""
    return bool(_TIME.fullmatch(name)) and started(name) > 0


def _meaning(words: Sequence[str]) -> tuple[str, int, int | None] | None:
    """net_name, graph_id and data_index for the path components below a device; None if they have another form."""
    numbers = [_number(word) for word in words]
    if len(words) <= 2 and None not in numbers:
        return "", *_ids(numbers)
    if words and None not in numbers[1:]:
        return words[0], *_ids(numbers[1:])
    return None


def _ids(numbers: Sequence[int | None]) -> tuple[int, int | None]:
    graph_id = numbers[0] if numbers else 0
    return graph_id or 0, numbers[1] if len(numbers) > 1 else None


def _number(name: str) -> int | None:
    return graph_of_word(name) if name == graph_word(PYNATIVE) or _NUMBER.fullmatch(name) else None


def _joined(relative: str, name: str) -> str:
    return f"{relative}/{name}" if relative else name


# Distinguishes dumps of devices from dumps in MindSpore's synchronous layout.
#
# The checks, in order: a {time} with devices below it, or above the path, is a device's dump (unless `rank_N` directories beside it
# contain npy files), and so are `rank_N` directories that contain dump files, as older versions of MindSpore wrote them; then
# directories that were copied out of a device's dump. A directory that both layouts could read is a device's if it contains a dump
# file, and a synchronous one if it contains only npy files.

_MOST_LOOKED_AT: Final = 100
_LOOKED_AT: Final = 64
_NOTHING: Final = Found((), ())


def find_dump(path: Path) -> Found | None:
    """The devices that a path refers to; None if it is a synchronous dump, or not a dump."""
    if not path.is_dir():
        return None
    real = path.resolve()
    found, in_ranks = _anchored(real), _in_ranks(real)
    if in_ranks.devices or (found.devices and not _ranks_hold_tensors(real)):
        return _together(found, in_ranks)
    loose = _NOTHING if _names_ranks(real) else find_loose(real)
    if _holds_dump_files(loose) or (_holds_files(loose) and not places_at(path)):
        return loose
    return None


def problems_at(path: Path) -> tuple[CorruptDumpError, ...]:
    """The problems of a search for devices in a directory."""
    loose = _NOTHING if _names_ranks(path) else find_loose(path)
    return (*_anchored(path).problems, *loose.problems)


def hint(path: Path) -> str:
    """A suggestion of a subdirectory that contains devices; empty if there is none."""
    for child in sorted(path.iterdir())[:_MOST_LOOKED_AT]:
        readable = child.is_dir() and not child.is_symlink() and os.access(child, os.R_OK | os.X_OK)
        if readable and any(is_time(name) for name in os.listdir(child)) and find_devices(child).devices:
            return f". Did you mean {child}?"
    return ""


def _in_ranks(path: Path) -> Found:
    """Older versions of MindSpore: the ranks at `path`, or above it, with an iteration that contains a dump file; none if there
    are npy files or nothing.
    """
    try:
        ranks = locate(path)
    except (UnknownLayoutError, CorruptDumpError):
        return _NOTHING
    devices = []
    for rank in ranks:
        places = find_places(rank.root) if rank.places is None else rank.places
        if rank.root.name.startswith("rank_") and any(
            _holds_dump_file(f"{rank.root}/{place.relative}") for place in places
        ):
            devices.append(_device(path, rank, places))
    return Found(tuple(devices), ())


def _device(path: Path, rank: RankPlace, places: Sequence[TensorDirectory]) -> DevicePlaces:
    below = os.path.relpath(rank.root, path)
    is_below = not below.startswith("..")
    prefix = f"{below}/" if is_below and below != "." else ""
    root = path if is_below else rank.root
    found = tuple(
        DumpDirectory(prefix + place.relative, net_name=place.net_name, graph_id=place.graph_id, data_index=place.step)
        for place in places
        if place.step is not None
    )
    return DevicePlaces(root, path if prefix else rank.root.parent, rank.rank_id, found)


def _holds_dump_file(directory: str) -> bool:
    try:
        with os.scandir(directory) as entries:
            return any(parse_dump_name(entry.name) is not None for entry in itertools.islice(entries, _LOOKED_AT))
    except OSError:
        return False  # listing it reports the problem


def _anchored(path: Path) -> Found:
    return _NOTHING if _is_part_of_rank(path) else find_devices(path)


def _together(one: Found, other: Found) -> Found:
    """The places of both, device by device."""
    devices = {device.rank_id: device for device in one.devices}
    for device in other.devices:
        known = devices.get(device.rank_id)
        devices[device.rank_id] = device if known is None else replace(known, places=(*known.places, *device.places))
    return Found(tuple(devices[rank] for rank in sorted(devices)), (*one.problems, *other.problems))


def _names_ranks(path: Path) -> bool:
    """Whether the path belongs to the synchronous layout, by a name in it or above it."""
    return any(name.startswith("rank_") for name in path.parts[-4:]) or any(path.glob("rank_*"))


def _is_part_of_rank(path: Path) -> bool:
    """Whether it is a net, a graph or an iteration of a `rank_N`, which may have very many entries, and have no times."""
    parts = path.parts[-4:]
    return any(name.startswith("rank_") for name in parts[:-1]) and not any(is_time(name) for name in parts)


def _ranks_hold_tensors(path: Path) -> bool:
    return any(find_places(rank) for rank in path.glob("rank_*") if rank.is_dir() and not rank.is_symlink())


def _holds_dump_files(found: Found) -> bool:
    return any(execution.dump is not None for execution in _named_executions(found))


def _holds_files(found: Found) -> bool:
    return any(True for _ in _named_executions(found))


def _named_executions(found: Found) -> Iterator[ExecutionFiles]:
    if not found.devices:
        return

    for device in found.devices:
        for place in device.places:
            for execution in list_place(device.root, place).executions:
                if execution.name is not None:
                    yield execution


# The files of one directory of a device's dump, grouped by execution.


@dataclass(slots=True)
class ExecutionFiles:
    """The files of one execution of an operator: paths relative to the root of the device."""

    name: DumpName | ExceptionName | None
    """None for a file with a name of digits that is not in mapping.csv: its header has the name."""
    dump: str | None = None
    statistics: str | None = None
    tensors: dict[tuple[IO, int], tuple[ConvertedName, str]] = field(default_factory=dict)
    copies: list[tuple[str, str]] = field(default_factory=list)
    """Further files of a tensor (converted again), each with the one that is read."""
    overflows: list[str] = field(default_factory=list)
    """The JSON of an overflow, one file for each output of its dump file."""


@dataclass(frozen=True, slots=True)
class PlaceFiles:
    """The content of a place."""

    executions: tuple[ExecutionFiles, ...]
    statistics: str | None
    problems: tuple[CorruptDumpError, ...]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to make a record of."""
        return not self.executions and self.statistics is None


def list_place(root: Path, place: DumpDirectory) -> PlaceFiles:
    """The files of a place by execution, in the order of their names. Files with other names are left out."""
    problems: list[CorruptDumpError] = []
    names = [name for name, is_directory in list_directory(root, place.relative, problems) if not is_directory]
    prefix = f"{place.relative}/" if place.relative else ""
    mapping = _mapping(root, prefix + MAPPING_NAME, problems) if MAPPING_NAME in names else NameMapping()
    executions: dict[DumpName | ExceptionName | str, ExecutionFiles] = {}
    for stored in names:
        true_name = mapping.true_name(stored)
        parsed = _resolved(parse_name(true_name), mapping)
        path = prefix + stored
        if parsed is not None:
            _add(executions, parsed, path)
        elif stored.isascii() and stored.isdigit():
            said = (
                "mapping.csv does not list it"
                if true_name == stored
                else f"mapping.csv gives it the name {true_name[:200]!r}"
            )
            problems.append(
                CorruptDumpError(
                    f"{root / path}: {said}; expected the name of a dump file. It is read under the name in its header"
                )
            )
            executions[path] = ExecutionFiles(None, dump=path)
    problems.extend(
        CorruptDumpError(f"{root / path}: holds the same tensor as {read}, which is read; it is ignored")
        for execution in executions.values()
        if execution.dump is None  # otherwise all of them are copies
        for path, read in execution.copies
    )
    statistics = prefix + STATISTIC_NAME if STATISTIC_NAME in names else None
    return PlaceFiles(tuple(executions.values()), statistics, tuple(problems))


def _mapping(root: Path, path: str, problems: list[CorruptDumpError]) -> NameMapping:
    try:
        mapping = read_mapping(inside(root, path))
    except CorruptDumpError as error:
        problems.append(error)
        return NameMapping()
    problems.extend(mapping.problems)
    return mapping


def _resolved(parsed: FileName | None, mapping: NameMapping) -> FileName | None:
    """A converted file with a replaced name (`123456.output.0.npy`), under its true name."""
    if isinstance(parsed, ConvertedName) and isinstance(parsed.dump, str):
        dump = parse_name(mapping.true_name(parsed.dump))
        return replace(parsed, dump=dump) if isinstance(dump, DumpName | ExceptionName) else None
    return parsed


def _add(executions: dict[DumpName | ExceptionName | str, ExecutionFiles], parsed: FileName, path: str) -> None:
    if isinstance(parsed, DumpName | ExceptionName):
        execution = executions.setdefault(parsed, ExecutionFiles(parsed))
        if execution.dump is None:
            execution.dump = path
        else:  # the same name twice, once through mapping.csv
            executions[path] = ExecutionFiles(parsed, dump=path)
    elif isinstance(parsed, StatisticsName):
        executions.setdefault(parsed.dump, ExecutionFiles(parsed.dump)).statistics = path
    elif not isinstance(parsed.dump, str):
        execution = ExecutionFiles(parsed.dump)
        if parsed.suffix == "npy" and parsed.part in ("input", "output"):
            execution = executions.setdefault(parsed.dump, execution)
            _, read = execution.tensors.setdefault((parsed.part, parsed.slot), (parsed, path))
            if read != path:
                execution.copies.append((path, read))
        elif parsed.suffix == "json" and isinstance(parsed.dump, DumpName) and parsed.dump.is_overflow:
            executions.setdefault(parsed.dump, execution).overflows.append(path)
