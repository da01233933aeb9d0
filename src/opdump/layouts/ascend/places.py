"""Interprets the directories of a device's dump, and paths given by the user.

The anchor is `{time}`, fourteen digits. `{step_id}` may be above it; below it is `{device_id}`, then any of `{model_name}`,
`{model_id}`, `{data_index}`. One number below a device is a model's, two are a model's and an index, and a word before them is
the name of the model. A numeric directory that contains `{time}` directories is a `{step_id}`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from opdump.errors import CorruptDumpError
from opdump.graph import PYNATIVE, graph_of_word, graph_word
from opdump.index.opening import INDEX_NAME
from opdump.index.payload import inside
from opdump.index.runs import METADATA

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
class Place:
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
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """The devices that a path refers to, and what could not be read."""

    devices: tuple[DevicePlaces, ...]
    problems: tuple[CorruptDumpError, ...]


def find_devices(path: Path) -> Found:
    """The devices at `path` if it is in a {time} directory, is one, or contains some; otherwise none."""
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
        self._places: dict[int, list[Place]] = {}

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
                    self._add_device(int(below[0]), "", below[1:], Place("", parts[position], step_id))
                else:
                    self._add_time("", parts[position], step_id)
                return

    def add_loose(self) -> None:
        for depth in range(len(_EXCEPTIONS) + 1):
            below = _EXCEPTIONS[depth:]
            above = self.path.parts[-depth:] if depth else ()
            if above == _EXCEPTIONS[:depth] and (self.path / Path(*below)).is_dir() and (below or above):
                relative = "/".join(below)
                devices = [name for name in self._directories(relative) if _DEVICE.fullmatch(name)]
                for name in devices:
                    self._add_device(int(name), _joined(relative, name), (), Place(""))
                if devices:
                    return
        name = self.path.name
        number = int(name) if _DEVICE.fullmatch(name) else None
        inner = [inner for inner in self._directories("") if _NUMBER.fullmatch(inner)]
        if number is not None and not inner:
            self._add_device(0, "", (), Place("", data_index=number))
        else:
            named = "" if number is not None else name
            self._add_device(number or 0, "", (), Place(""), copied_model=named)

    def _add_time(self, relative: str, time: str, step_id: int | None) -> None:
        for name in self._directories(relative):
            if _DEVICE.fullmatch(name):
                self._add_device(int(name), _joined(relative, name), (), Place("", time, step_id))

    def _add_device(
        self, rank: int, relative: str, above: Sequence[str], like: Place, *, copied_model: str = ""
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
                place = Place(
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
            self._places.setdefault(rank, []).append(Place(relative, like.time, like.step_id))

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
        problems.append(CorruptDumpError(f"{directory}: cannot be listed ({error.strerror}); its files are left out"))
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


def _is_within(place: Place, relative: str) -> bool:
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
