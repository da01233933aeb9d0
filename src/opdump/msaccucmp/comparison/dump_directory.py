"""Finds the dumps of one side of a comparison: the files, their kind, and the operator of each."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final

from opdump.msaccucmp.comparison.algorithms import NOT_A_NUMBER
from opdump.msaccucmp.exit_codes import AbortError, CommandError, ExitCode
from opdump.msaccucmp.journal import log
from opdump.msaccucmp.output_folder import MAPPING_FILE

_DEVICE: Final = re.compile(
    r"(?P<type>[A-Za-z0-9_-]+)\.(?P<name>[A-Za-z0-9_-]+)\.[0-9]+(\.[0-9]+)?\.(?P<time>[0-9]{1,255})"
    r"(\.[0-9]+\.[0-9]+\.[0-9]+)?(\.[0-9]+)?"
)
_FRAMEWORK: Final = r"(?P<name>[A-Za-z0-9_.-]+)\.(?P<index>[0-9]+)\.(?P<time>[0-9]{{1,255}})\.{}$"
_TASK_TYPES: Final = frozenset({"0", "1", "2", "3", "4"})
_FFTS_TASK: Final = "4"
_LONGEST_PLAIN_NAME: Final = 6
_TIME: Final = re.compile(r"[0-9]{16}")


class DumpKind(Enum):
    """The kind of the files of a side; the value is its name in the log."""

    DEVICE = "dumps of a model on a device"
    QUANTISED = "dumps of a quantised model of a framework (.quant)"
    FRAMEWORK = "dumps of a model of a framework (.npy, .pb)"


_SUFFIXES: Final[Mapping[str, DumpKind]] = MappingProxyType(
    {"npy": DumpKind.FRAMEWORK, "pb": DumpKind.FRAMEWORK, "quant": DumpKind.QUANTISED}
)
_PATTERNS: Final[Mapping[str, re.Pattern[str]]] = MappingProxyType(
    {suffix: re.compile(_FRAMEWORK.format(suffix)) for suffix in _SUFFIXES}
)


@dataclass(frozen=True, slots=True)
class FoundDump:
    """A file, and the information in its name."""

    path: str
    timestamp: int
    op_type: str = ""


@dataclass(frozen=True, slots=True)
class DumpSide:
    """The dumps of a directory. `files`: by operator, or by `operator.output` if a framework wrote them, newest last."""

    path: str
    kind: DumpKind
    suffix: str
    files: Mapping[str, list[FoundDump]] = field(default_factory=dict)

    @property
    def is_npy(self) -> bool:
        return self.suffix == "npy"

    def in_order(self) -> dict[str, FoundDump]:
        """The newest dump of each operator, the oldest of these first."""
        newest = {name: found[-1] for name, found in self.files.items()}
        return dict(sorted(newest.items(), key=lambda pair: pair[1].timestamp))

    def newest(self, name: str) -> FoundDump | None:
        found = self.files.get(name)
        return found[-1] if found else None


def read_side(path: str) -> DumpSide:
    """The dumps in the directory. Raises CommandError if there are none, or several kinds."""
    if not os.path.isdir(path):
        raise CommandError(ExitCode.BAD_PATH, f"{path} is not a directory; a directory of dumps was expected")
    suffixes: set[str] = set()
    files: dict[str, list[FoundDump]] = {}
    names: Mapping[str, str] | None = None
    for entry in os.listdir(path):
        place = os.path.join(path, entry)
        if entry == MAPPING_FILE or not os.path.isfile(place):
            continue
        name = entry
        if entry.isdigit():
            if names is None:
                names = _mapping(path)
            name = names.get(entry, "")
            if not name:
                if os.path.exists(os.path.join(path, MAPPING_FILE)):
                    raise AbortError(f"{place} has no true name in {MAPPING_FILE}")
                log("WARNING", f"{place} has no true name: there is no {MAPPING_FILE}; it is left out")
                continue
        read = _read_name(name)
        if read is None:
            log("WARNING", f"{place} is left out: {name} is no name of a dump (op_type.op_name.task_id.stream_id.time)")
            continue
        suffix, key, op_type, time = read
        op_type = op_type if name == entry else NOT_A_NUMBER  # the type is read only from the true file name
        suffixes.add(suffix)
        if len(suffixes) > 1:
            raise CommandError(ExitCode.BAD_FILE_NAME, f"{path} holds dumps of several kinds: {entry} is another one")
        files.setdefault(key, []).append(FoundDump(place, time, op_type))
    if not files:
        raise CommandError(ExitCode.BAD_FILE_NAME, f"{path} holds no dump")
    for found in files.values():
        found.sort(key=lambda file: file.timestamp)
    (suffix,) = suffixes
    return DumpSide(path, _SUFFIXES.get(suffix, DumpKind.DEVICE), suffix, files)


def _read_name(name: str) -> tuple[str, str, str, int] | None:
    """Kind by suffix, key, type of operator and time; None if the name is not that of a dump."""
    suffix = name.rpartition(".")[2]
    if suffix in _PATTERNS:
        match = _PATTERNS[suffix].match(name)
        return None if match is None else (suffix, f"{match['name']}.{match['index']}", "", _time(name, match["time"]))
    match = _DEVICE.match(name)
    if match is None:
        return None
    parts = name.split(".")
    time = parts[-1]
    if len(parts) > _LONGEST_PLAIN_NAME:
        if parts[-4] not in _TASK_TYPES:
            raise CommandError(ExitCode.BAD_TASK_TYPE, f"{name}: {parts[-4]} is no type of a task; 0 to 4 are")
        if parts[-4] == _FFTS_TASK:
            time = parts[-5]
    return "", match["name"], match["type"], _time(name, time)


def _time(name: str, text: str) -> int:
    """Microseconds since 1970 in 16 digits; -1, which sorts first, for anything else."""
    if _TIME.fullmatch(text):
        return int(text)
    log("WARNING", f"{name} has no time of 16 digits; it counts as the oldest")
    return -1


def _mapping(folder: str) -> Mapping[str, str]:
    """The true names in mapping.csv. Invalid lines are logged; a file that is not text has none."""
    path = os.path.join(folder, MAPPING_FILE)
    names: dict[str, str] = {}
    if not os.path.isfile(path):
        return names
    import csv

    try:
        with open(path, encoding="utf-8", newline="") as file:
            for row in csv.reader(file):
                if len(row) != 2:
                    log("ERROR", f"{path}: {row} is no pair of a file and its true name")
                    continue
                names[row[0]] = row[1]
    except (OSError, ValueError, csv.Error) as error:
        log("ERROR", f"{path} cannot be read: {error}")
    return names
