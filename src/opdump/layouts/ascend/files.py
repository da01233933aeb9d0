"""The files of one directory of a device's dump, grouped by execution."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from opdump.dump_file.names import (
    MAPPING_NAME,
    ConvertedName,
    DumpName,
    ExceptionName,
    FileName,
    NameMapping,
    StatisticsName,
    parse_name,
    read_mapping,
)
from opdump.errors import CorruptDumpError
from opdump.index.payload import inside
from opdump.layouts.ascend.places import Place, list_directory
from opdump.layouts.mindspore_sync.files import STATISTIC_NAME
from opdump.records import IO


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


def list_place(root: Path, place: Place) -> PlaceFiles:
    """The files of a place by execution, in the order of their names. Files with other names are left out."""
    problems: list[CorruptDumpError] = []
    names = [name for name, is_directory in list_directory(root, place.relative, problems) if not is_directory]
    prefix = f"{place.relative}/" if place.relative else ""
    mapping = NameMapping()
    if MAPPING_NAME in names:
        try:
            mapping = read_mapping(inside(root, prefix + MAPPING_NAME))
            problems.extend(mapping.problems)
        except CorruptDumpError as error:
            problems.append(error)
    executions: dict[DumpName | ExceptionName | str, ExecutionFiles] = {}
    for stored in names:
        true_name = mapping.true_name(stored)
        parsed = _resolved(parse_name(true_name), mapping)
        path = prefix + stored
        if parsed is None and stored.isascii() and stored.isdigit():
            said = (
                "mapping.csv does not list it" if true_name == stored else f"mapping.csv calls it {true_name[:200]!r}"
            )
            problems.append(
                CorruptDumpError(
                    f"{root / path}: {said}; the name of a dump file was expected there. It is read under the name in its header"
                )
            )
            executions[path] = ExecutionFiles(None, dump=path)
        elif parsed is not None:
            _add(executions, parsed, path)
    problems.extend(
        CorruptDumpError(f"{root / path}: holds the same tensor as {read}, which is read; it is left out")
        for execution in executions.values()
        if execution.dump is None  # otherwise all of them are copies
        for path, read in execution.copies
    )
    statistics = prefix + STATISTIC_NAME if STATISTIC_NAME in names else None
    return PlaceFiles(tuple(executions.values()), statistics, tuple(problems))


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
