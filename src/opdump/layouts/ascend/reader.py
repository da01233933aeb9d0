"""Reads a device of a dump. Directories are listed when the dump is opened, headers are read when a step is requested."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar, cast

import numpy.typing as npt

from opdump.dump_file import DumpFile, DumpTensor, data_type, read_dump_file
from opdump.dump_file.dump_file import samples_of
from opdump.dump_file.names import UNKNOWN_ID, ConvertedName, DumpName, ExceptionName, sanitise
from opdump.errors import CorruptDumpError, UndecodableTensorError
from opdump.graph import Graph
from opdump.index.opening import INDEX_NAME
from opdump.index.reader import IndexReader
from opdump.index.runs import METADATA, LostFiles, Run, RunChoice, cut_off, left_out
from opdump.index.values import FilePayload, InFile, bytes_of, inside, is_sample, is_stored_as
from opdump.layouts.ascend.operator_files import OperatorRow, OverflowRecord, decode_operator_csv
from opdump.layouts.ascend.places import (
    DevicePlaces,
    DumpDirectory,
    ExecutionFiles,
    Found,
    PlaceFiles,
    list_place,
    started,
)
from opdump.layouts.base import ModelDirectories, require_run
from opdump.layouts.mindspore_sync.files import dtype_of_token, read_table
from opdump.layouts.mindspore_sync.from_files import TrueNames, phase_of
from opdump.layouts.mindspore_sync.reader import RankTree
from opdump.layouts.mindspore_sync.statistic_csv import StatisticRow, decode_statistic_csv
from opdump.records import IO, DamagedPayload, OpRecord, Payload, TensorRecord
from opdump.step_table import StepTable

_GRAPH_DIRECTORIES = ("graphs", "execution_order")


class DeviceTree:
    """One device of a dump. `rank_id` is the device's number, and so is `device_id` of its operators.

    A run is a {time} directory. If {step_id} directories are above, each step has a time of its own, so a run is a sequence of
    growing steps. Operators of a step are ordered by time stamp, across all models and data directories.
    """

    def __init__(
        self, device: DevicePlaces, *, run: RunChoice = "latest", problems: Sequence[CorruptDumpError] = ()
    ) -> None:
        self._device = device
        self.root = device.root
        self.rank_id = device.rank_id
        self._problems: dict[str, CorruptDumpError] = {}
        self._note(*problems)
        self._run = run
        self._places = device.places
        self._listed: dict[DumpDirectory, PlaceFiles] = {}
        self._names: dict[int, TrueNames] = {}
        self._run_of = _runs_of_places(device.places)
        found: list[CorruptDumpError] = []
        self._indexes = Indexes(device.root, device.places, found)
        self._note(*found)
        self.runs = self._described()
        self._graphs = self._graphs_beside(device.base)

    def __repr__(self) -> str:
        return f"DeviceTree({str(self.root)!r}, rank_id={self.rank_id})"

    @property
    def problems(self) -> tuple[CorruptDumpError, ...]:
        """The read errors so far, each once."""
        beside = self._graphs.problems if self._graphs is not None else ()
        return (*self._problems.values(), *beside)

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps of the selected run or runs that have a file, ascending."""
        places = self._readable()
        homes = {self._indexes.homes.get(place) for place in places}
        listed = {step for home in homes for step in self._indexes.steps(home)}
        return tuple(sorted({place.step for place in places if not self._unlisted(place).is_empty} | listed))

    @property
    def graph_ids(self) -> tuple[int, ...]:
        """The models with data, and the graphs with a file beside the dump, ascending."""
        beside = self._graphs.graph_ids if self._graphs is not None else ()
        return tuple(sorted({*beside, *(place.graph_id for place in self._places)}))

    def step(self, step: int) -> StepTable[TensorRecord]:
        """The records of a step; none if the selected run does not have it.

        Records in opdump's index are read from there; the rest, what a killed run or a device left, from the files.
        """
        problems: list[CorruptDumpError] = []
        places = self._places_of(step)
        indexed = {home for home in places.values() if home is not None and step in self._indexes.steps(home)}
        listed = {home: self._indexes.read(home, step, problems) for home in sorted(indexed)}
        batches = [*chain.from_iterable(filter(None, listed.values()))]
        stamps = {op.timestamp for batch in batches for op in batch.ops}
        reader = PlaceReader(self.root, self.rank_id, problems)
        executed = []
        for place, home in places.items():
            if place.step == step:
                is_damaged = home in listed and listed[home] is None
                files = self._files(place) if is_damaged else self._unlisted(place)
                executed += reader.read(place, files, self._true_names(place.graph_id))
            if home in listed and not place.has_step:
                # Of single operators: the index knows in which step they overflowed.
                files = _overflows(self._files(place), stamps)
                executed += reader.read(replace(place, data_index=step), files, self._true_names(place.graph_id))
        content = _with_index(_content(executed), batches)
        self._note(*problems)
        return content

    def _places_of(self, step: int) -> dict[DumpDirectory, str | None]:
        """The places that may have records of a step, each with the directory of its index."""
        homes = {place: self._indexes.homes.get(place) for place in self._readable()}
        covering = {home for home in set(homes.values()) if step in self._indexes.steps(home)}
        found = {place: home for place, home in homes.items() if place.step == step or home in covering}
        if self._run == "latest" and found:
            last = max(self._run_of[place] for place in found)
            found = {place: home for place, home in found.items() if self._run_of[place] == last}
        return found

    def _unlisted(self, place: DumpDirectory) -> PlaceFiles:
        """The files of a place that no index lists: they were added later, or describe an overflow."""
        files = self._files(place)
        home = self._indexes.homes.get(place)
        if home is None:
            return files
        problems: list[CorruptDumpError] = []
        newest = self._indexes.newest(home, problems)
        self._note(*problems)
        late = [
            execution
            for execution in files.executions
            if execution.name is None or execution.name.microseconds > newest
        ]
        known = {id(execution) for execution in late}
        overflows = [each for each in files.executions if _is_overflow(each) and id(each) not in known]
        if late and not self._indexes.is_complete(home):
            if not place.has_step and place.time:
                # A {time} directory has single operators of every step; files of a failed operator are outside of it.
                self._note(left_out(self.root / place.relative, len(late)))
                return PlaceFiles((), None, files.problems)
            self._note(cut_off(self.root / place.relative, place.step, len(late)))
        return PlaceFiles((*late, *(overflows if place.has_step else ())), None, files.problems)

    def model_directories(self) -> ModelDirectories:
        """The directories of the selected run; of the last one for "latest"."""
        last = max(self._run_of.values(), default=0)
        places = [
            place
            for place in self._places
            if self._is_chosen(place) and (self._run != "latest" or self._run_of[place] == last)
        ]
        models: dict[str, dict[str, None]] = {}
        homes: dict[Path, None] = {}
        for place in places:
            path = self.root / place.relative
            if place.net_name:
                model = path.parent if place.data_index is not None else path
                models.setdefault(place.net_name, {})[os.path.relpath(model, self._device.base)] = None
            homes.update((each, None) for each in (path, *path.parents) if each.parent.name == place.time != "")
        found = {name: tuple(directories) for name, directories in models.items()}
        return ModelDirectories(self._device.base, self.root, tuple(homes), found)

    def constants(self) -> tuple[TensorRecord, ...]:
        """None: a device only writes inputs and outputs of operators."""
        return ()

    def graph(self, graph_id: int) -> Graph | None:
        """The graph of that number from a `graphs/` beside the dump; None if there is none."""
        return self._graphs.graph(graph_id) if self._graphs is not None else None

    def history(self, graph_id: int) -> tuple[int, ...]:
        """The steps in an execution history beside the dump."""
        return self._graphs.history(graph_id) if self._graphs is not None else ()

    def execution_order(self, graph_id: int) -> tuple[str, ...]:
        """The operators of a graph, from an execution order beside the dump."""
        return self._graphs.execution_order(graph_id) if self._graphs is not None else ()

    def _readable(self) -> list[DumpDirectory]:
        """The places of the selected runs that have records."""
        return [place for place in self._places if self._is_chosen(place) and self._has_records(place)]

    def _has_records(self, place: DumpDirectory) -> bool:
        return not self._files(place).is_empty or self._indexes.homes.get(place) == place.relative

    def _is_chosen(self, place: DumpDirectory) -> bool:
        return not isinstance(self._run, int) or self._run_of[place] == self._run

    def _files(self, place: DumpDirectory) -> PlaceFiles:
        files = self._listed.get(place)
        if files is None:
            files = self._listed[place] = list_place(self.root, place)
            self._note(*files.problems)
        return files

    def _true_names(self, graph_id: int) -> TrueNames:
        names = self._names.get(graph_id)
        if names is None:
            try:
                names = TrueNames(self.execution_order(graph_id), (), self.graph(graph_id))
            except CorruptDumpError as error:  # a link out of the dump
                self._note(error)
                names = TrueNames((), (), None)
            self._names[graph_id] = names
        return names

    def _described(self) -> tuple[Run, ...]:
        times: dict[int, int] = {}
        told: dict[int, dict[str, tuple[Run, ...]]] = {}
        for place, run in self._run_of.items():
            moment = started(place.time) if place.time else self._first_stamp(place)
            times[run] = min(times.get(run, moment), moment)
            home = self._indexes.homes.get(place)
            if home is not None:
                told.setdefault(run, {})[home] = self._indexes.runs(home)
        return tuple(
            _described(run, self.rank_id, moment, [each for runs in told.get(run, {}).values() for each in runs])
            for run, moment in sorted(times.items())
        )

    def _first_stamp(self, place: DumpDirectory) -> int:
        stamps = [execution.name.microseconds for execution in self._files(place).executions if execution.name]
        # Beyond the end of the calendar.
        return min(*stamps, 250_000_000_000_000_000) if stamps else 0

    def _graphs_beside(self, base: Path) -> RankTree | None:
        for directory in (base / f"rank_{self.rank_id}", base, self.root):
            held = [name for name in _GRAPH_DIRECTORIES if (directory / name).is_dir()]
            if held:
                try:
                    for name in held:
                        inside(base, os.path.relpath(directory / name, base))
                    return RankTree(directory.resolve(), self.rank_id, places=())
                except CorruptDumpError as error:
                    self._note(error)
        return None

    def _note(self, *problems: CorruptDumpError) -> None:
        for problem in problems:
            self._problems.setdefault(str(problem), problem)


def read_devices(path: Path, found: Found, *, run: RunChoice = "latest") -> tuple[DeviceTree, ...]:
    """The devices that were found at `path`. Raises NotInDumpError if none has the run of that number."""
    trees = tuple(
        DeviceTree(device, run=run, problems=found.problems if number == 0 else ())
        for number, device in enumerate(found.devices)
    )
    require_run(path, run, trees)
    return trees


def _runs_of_places(places: Sequence[DumpDirectory]) -> dict[DumpDirectory, int]:
    """The run of each place: its {time}; consecutive times that each have a later step form one run."""
    run_of_time: dict[tuple[str, int | None], int] = {}
    run, last = 0, -1
    for time, step_id in sorted({(place.time, -1 if place.step_id is None else place.step_id) for place in places}):
        if step_id < 0 or step_id <= last or run == 0:
            run += 1
        last = step_id
        run_of_time[time, None if step_id < 0 else step_id] = run
    return {place: run_of_time[place.time, place.step_id] for place in places}


def _described(number: int, rank_id: int, moment: int, told: Sequence[Run]) -> Run:
    """A run as described by the indexes in its directories: one index, or one for each step."""
    if not told:
        return Run(id=number, rank_id=rank_id, started=moment, device_target="Ascend")
    last = max(told, key=lambda run: run.started)
    ends = [run.ended for run in told]
    return replace(
        last,
        id=number,
        rank_id=rank_id,
        started=min(run.started for run in told),
        ended=None if None in ends else max(end for end in ends if end is not None),
    )


def _is_overflow(execution: ExecutionFiles) -> bool:
    return isinstance(execution.name, DumpName) and execution.name.is_overflow


def _overflows(files: PlaceFiles, stamps: Collection[int]) -> PlaceFiles:
    """The overflow files of operators with these time stamps."""
    found = [
        execution
        for execution in files.executions
        if _is_overflow(execution) and execution.name is not None and execution.name.microseconds in stamps
    ]
    return PlaceFiles(tuple(found), None, ())


def _with_index(
    content: StepTable[TensorRecord], batches: Sequence[StepTable[TensorRecord]]
) -> StepTable[TensorRecord]:
    ops, tensors, counted = list(content.ops), list(content.tensors), Counter(content.counted)
    listed = [op for batch in batches for op in batch.ops]
    # Operators outside of the index came after those in it.
    first = max((op.order for op in listed), default=-1) + 1
    later = {id(op): replace(op, order=first + number) for number, op in enumerate(ops)}
    for batch in batches:
        counted.update(batch.counted)
    return StepTable.of(
        (*listed, *later.values()),
        (
            *(tensor for batch in batches for tensor in batch.tensors),
            *(replace(tensor, op=later[id(tensor.op)]) for tensor in tensors),
        ),
        counted,
    )


def _content(executed: Sequence[Executed]) -> StepTable[TensorRecord]:
    ops: list[OpRecord] = []
    tensors: list[TensorRecord] = []
    counts: dict[tuple[str, int, str, str], int] = {}
    for order, execution in enumerate(sorted(executed, key=lambda execution: execution.op.timestamp)):
        op = execution.op
        key = (op.net_name, op.graph_id, op.op_type, op.op_name)
        counts[key] = occurrence = counts.get(key, -1) + 1
        op = replace(op, order=order, occurrence=occurrence)
        ops.append(op)
        tensors.extend(replace(tensor, op=op) for tensor in execution.tensors)
    return StepTable.of(ops, tensors)


# The records of one directory of a device's dump: headers of dump files, names and headers of npy files, rows of csv files.

_CONTROLS = dict.fromkeys((*range(32), *range(127, 160)), "\ufffd")
# If a converter had to convert the format of a tensor, the name has the shape instead of the format.
_SHAPE_IN_NAME = re.compile(r"[0-9]+(?:x[0-9]+)*", re.ASCII)
_ORDER_OF_IO = {"input": 0, "output": 1}
_Row = TypeVar("_Row", StatisticRow, OperatorRow)


@dataclass(frozen=True, slots=True)
class Executed:
    """One execution of an operator, before its order and occurrence in the step are known."""

    op: OpRecord
    tensors: tuple[TensorRecord, ...]


class PlaceReader:
    """Reads places of one device. Unreadable parts are added to `problems`; everything else is still read."""

    def __init__(self, root: Path, rank_id: int, problems: list[CorruptDumpError]) -> None:
        self._root = root
        self._rank_id = rank_id
        self._problems = problems

    def read(self, place: DumpDirectory, files: PlaceFiles, names: TrueNames) -> list[Executed]:
        """The executions of a place, in the order of their names."""
        rows = _Rows(self._rows(files.statistics, decode_statistic_csv))
        executed = [self._execution(place, files_of, names, rows) for files_of in files.executions]
        executed.extend(self._from_rows(place, group, names) for group in rows.left())
        return executed

    def _execution(self, place: DumpDirectory, files: ExecutionFiles, names: TrueNames, rows: _Rows) -> Executed:
        header = self._header(files.dump)
        name = files.name
        op_type, op_name, task_id, stream_id = "Unknown", "", UNKNOWN_ID, UNKNOWN_ID
        timestamp, in_header = (header.dump_time, header.op_name) if header is not None else (0, "")
        if isinstance(name, DumpName):
            name = name.in_true_order(in_header)
            op_type, op_name, task_id, timestamp = name.op_type, name.op_name, name.task_id, name.microseconds
            stream_id = UNKNOWN_ID if name.stream_id is None else name.stream_id
        elif isinstance(name, ExceptionName):
            op_type = op_name = name.kernel
            task_id, stream_id, timestamp = name.task_id, name.stream_id, name.microseconds
        is_overflow = isinstance(name, DumpName) and name.is_overflow
        true_name = op_name if is_overflow else in_header or names.true_name(op_type, op_name)
        known = rows.take(op_type, op_name, timestamp, task_id, stream_id)
        if header is None and known:
            written = next(iter(known.values())).op_name
            true_name = written if sanitise(written) == op_name else true_name
        op = self._op(place, names, op_type, true_name or str(files.dump), timestamp, task_id, stream_id)
        if is_overflow:
            return Executed(OverflowRecord.of(op, files.overflows if files.dump is None else [files.dump]), ())
        return Executed(op, self._tensors(op, files, header, known))

    def _tensors(
        self, op: OpRecord, files: ExecutionFiles, header: DumpFile | None, known: Mapping[tuple[IO, int], StatisticRow]
    ) -> tuple[TensorRecord, ...]:
        """The tensors of a dump file, of converted files that it does not have, and of the rows of both kinds of tables."""
        tensors: dict[tuple[IO, int], TensorRecord] = {}
        samples = samples_of(header) if header is not None else {}
        for tensor in header.tensors if header is not None else ():
            found = self._from_dump(op, str(files.dump), tensor)
            whole = samples.get(tensor.name)
            tensors[tensor.io, tensor.slot] = found if whole is None else _sample_of(found, whole)
        for key, (converted, relative) in files.tensors.items():
            if key not in tensors:
                tensors[key] = self._from_npy(op, relative, key, converted, known.get(key))
        for operator_row in self._rows(files.statistics, decode_operator_csv):
            key = (operator_row.io, operator_row.slot)
            tensors[key] = _with_statistics(op, tensors.get(key), operator_row, operator_row.format)
        for key, row in known.items():
            tensors[key] = _with_statistics(op, tensors.get(key), row, "DefaultFormat")
        return _in_order(tensors.values())

    def _from_rows(self, place: DumpDirectory, group: Sequence[StatisticRow], names: TrueNames) -> Executed:
        first = group[0]
        true_name = first.op_name if "/" in first.op_name else names.true_name(first.op_type, first.op_name)
        op = self._op(place, names, first.op_type, true_name, first.timestamp, first.task_id, first.stream_id)
        return Executed(op, _in_order(_with_statistics(op, None, row, "DefaultFormat") for row in group))

    def _op(
        self,
        place: DumpDirectory,
        names: TrueNames,
        op_type: str,
        op_name: str,
        timestamp: int,
        task_id: int,
        stream_id: int,
    ) -> OpRecord:
        node = names.node(op_name)
        return OpRecord(
            op_type=_text(op_type),
            op_name=_text(op_name),
            timestamp=timestamp,
            step=place.step,
            net_name=place.net_name,
            graph_id=place.graph_id,
            rank_id=self._rank_id,
            device_id=self._rank_id,
            task_id=task_id,
            stream_id=stream_id,
            phase=phase_of(op_name),
            stack=node.stack if node is not None else (),
        )

    def _header(self, relative: str | None) -> DumpFile | None:
        if relative is None:
            return None
        try:
            return read_dump_file(inside(self._root, relative))
        except CorruptDumpError as error:
            self._problems.append(error)
            return None

    def _from_dump(self, op: OpRecord, relative: str, tensor: DumpTensor) -> TensorRecord:
        bits = data_type(tensor.data_type).bits
        available = tensor.size * 8 // bits if bits else tensor.size
        shape = tensor.shape
        if bits == 0 or tensor.data_type == 0 or (not shape and available != 1):
            shape = (available,)
        count = math.prod(shape)
        payload: Payload | None = DumpPayload(self._root, relative, tensor.io, tensor.slot)
        if count > available > 0:
            said = (
                f"{self._root / relative}: {tensor.name} holds {tensor.size} bytes of {tensor.dtype}; its shape {shape} needs "
                f"{(count * bits + 7) // 8}: it cannot be decoded, the other tensors of the file can"
            )
            self._problems.append(CorruptDumpError(said))
            payload = DamagedPayload(os.path.join(self._root, relative), UndecodableTensorError(said))
        elif count > available:
            # No bytes for a non-empty shape: the device could not copy the tensor, or the writer omitted the size.
            payload = None
        return TensorRecord(
            op=op,
            io=tensor.io,
            slot=tensor.slot,
            dtype=tensor.dtype,
            shape=shape,
            format=tensor.format_name,
            payload=payload,
            data_size=(count * bits + 7) // 8 if bits else tensor.size,
        )

    def _from_npy(
        self, op: OpRecord, relative: str, key: tuple[IO, int], name: ConvertedName, row: StatisticRow | None
    ) -> TensorRecord:
        dtype = row.dtype if row is not None else dtype_of_token(name.dtype)
        shape = row.shape if row is not None else ()
        sample = 0
        payload: Payload
        try:
            header = FilePayload(self._root, relative, dtype).header()
        except CorruptDumpError as error:
            self._problems.append(error)
            payload = DamagedPayload(os.path.join(self._root, relative), error)
        else:
            shape = header.shape
            if not is_stored_as(dtype, header.dtype):
                dtype = header.dtype
            payload = FilePayload(self._root, relative, dtype)
        if row is not None and is_sample(shape, row.shape):
            sample, shape = shape[0], row.shape
        return TensorRecord(
            op=op,
            io=key[0],
            slot=key[1],
            dtype=dtype or "unknown",
            shape=shape,
            sample=sample,
            format="DefaultFormat" if not name.format or _SHAPE_IN_NAME.fullmatch(name.format) else name.format,
            payload=payload,
            data_size=bytes_of(dtype, math.prod(shape)),
        )

    def _rows(self, relative: str | None, decode: Callable[..., list[_Row]]) -> list[_Row]:
        if relative is None:
            return []
        try:
            path = inside(self._root, relative)
            return decode(read_table(path), where=str(path))
        except CorruptDumpError as error:
            self._problems.append(error)
            return []


class _Rows:
    """The rows of a statistic.csv by execution."""

    def __init__(self, rows: Iterable[StatisticRow]) -> None:
        self._by_execution: dict[tuple[int, int, int, str], dict[str, list[StatisticRow]]] = {}
        for row in rows:
            key = (row.timestamp, row.task_id, row.stream_id, sanitise(row.op_type))
            self._by_execution.setdefault(key, {}).setdefault(row.op_name, []).append(row)

    def take(
        self, op_type: str, op_name: str, timestamp: int, task_id: int, stream_id: int
    ) -> dict[tuple[IO, int], StatisticRow]:
        """The rows of an execution, which are then no longer in `left`. A row may have the last component of a name, or the whole
        name.
        """
        named = self._by_execution.get((timestamp, task_id, stream_id, op_type), {})
        for written in named:
            if sanitise(written) == op_name or sanitise(written.rpartition("/")[2]) == op_name:
                return {(row.io, row.slot): row for row in named.pop(written)}
        if len(named) == 1:
            written = next(iter(named))
            if op_name.endswith(sanitise(written)):
                return {(row.io, row.slot): row for row in named.pop(written)}
        return {}

    def left(self) -> list[list[StatisticRow]]:
        """The rows of executions without a file, by execution."""
        return [rows for named in self._by_execution.values() for rows in named.values()]


def _sample_of(tensor: TensorRecord, whole: tuple[int, ...]) -> TensorRecord:
    return replace(tensor, shape=whole, sample=tensor.shape[0], data_size=bytes_of(tensor.dtype, math.prod(whole)))


def _with_statistics(
    op: OpRecord, tensor: TensorRecord | None, row: StatisticRow | OperatorRow, format_: str
) -> TensorRecord:
    # The same NaN object everywhere, so that reading twice returns equal records.
    statistics = {name: math.nan if value != value else value for name, value in row.statistics.items()}  # noqa: PLR0124
    if tensor is None:
        return TensorRecord(
            op, row.io, row.slot, row.dtype, row.shape, format_ or "ND", None, statistics, data_size=row.data_size
        )
    return replace(tensor, statistics={**tensor.statistics, **statistics})


def _in_order(tensors: Iterable[TensorRecord]) -> tuple[TensorRecord, ...]:
    return tuple(sorted(tensors, key=lambda tensor: (_ORDER_OF_IO[tensor.io], tensor.slot)))


def _text(name: str) -> str:
    """A name without terminal control characters, and without the lone surrogates that represent bytes outside of UTF-8."""
    if name.isprintable():
        return name
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace").translate(_CONTROLS)


# Elements in a dump file, read on demand.


@dataclass(frozen=True, slots=True)
class DumpPayload(InFile):
    """One tensor of a dump file, in the device's format.

    The file is opened only when the elements are requested: a dump may have more files than a process can keep open.
    """

    io: IO
    slot: int

    def inspect(self) -> None:
        """Raises like `tensor`; no element is read."""
        self.tensor()

    def tensor(self) -> DumpTensor:
        """The tensor with all its metadata in the file: format, original shape, groups.

        Raises CorruptDumpError if the file cannot be read, or no longer has the tensor.
        """
        path = self.path
        file = read_dump_file(path)
        tensors = file.inputs if self.io == "input" else file.outputs
        if self.slot >= len(tensors):
            raise CorruptDumpError(
                f"{path}: holds {len(tensors)} tensors of kind {self.io}, but none with number {self.slot}; it had one when the dump "
                "was opened, so it was overwritten. Open the dump again"
            )
        return tensors[self.slot]

    def read(self) -> npt.NDArray[Any]:
        """The result of `DumpTensor.to_host`: mapped if the file is large, widened if numpy lacks the type.

        Raises CorruptDumpError if the file cannot be read, and UndecodableTensorError if the tensor cannot be decoded.
        """
        return self.tensor().to_host()


# The hidden index that opdump writes beside a device's files: records as they were written, including skipped operators.
#
# A dump of a device has no index, and is read from its files.

_LATER_THAN_ANY: Final = 1 << 63
_PART_OF_FILE: Final = re.compile(r"(?P<file>.+)#(?P<io>input|output):(?P<number>[0-9]{1,9})", re.ASCII | re.DOTALL)


class Indexes:
    """The indexes below `root` and above the given places, each opened once."""

    def __init__(self, root: Path, places: tuple[DumpDirectory, ...], problems: list[CorruptDumpError]) -> None:
        self._root = root
        self._readers: dict[str, IndexReader] = {}
        self.homes: dict[DumpDirectory, str] = {}
        """The directory of the index that covers a place."""
        self._newest: dict[str, int] = {}
        refused: set[str] = set()
        for place in places:
            for above in (place.relative, *map(str, PurePosixPath(place.relative or ".").parents)):
                home = "" if above == "." else above
                if home in self._readers:
                    self.homes[place] = home
                    break
                relative = f"{home}/{METADATA}/{INDEX_NAME}" if home else f"{METADATA}/{INDEX_NAME}"
                if home in refused or not (root / relative).is_file():
                    continue
                try:
                    path = inside(root, relative)
                    self._readers[home] = IndexReader(path, root / home if home else root, open_payload=_open_payload)
                except CorruptDumpError as error:
                    refused.add(home)
                    problems.append(error)
                    continue
                self.homes[place] = home
                break

    def steps(self, home: str | None) -> set[int]:
        """The steps in an index; none for None."""
        return set() if home is None else {batch.step for batch in self._readers[home].batches}

    def runs(self, home: str) -> tuple[Run, ...]:
        """The runs in an index."""
        return self._readers[home].runs

    def is_complete(self, home: str) -> bool:
        """Whether every run in an index ended normally."""
        return all(run.complete for run in self.runs(home))

    def newest(self, home: str, problems: list[CorruptDumpError]) -> int:
        """The latest time stamp of an operator in an index; -1 if it has none.

        A damaged index is added to `problems`, and counts as later than any file, because its operators must not be read twice.
        """
        if home not in self._newest:
            try:
                self._newest[home] = self._readers[home].newest_timestamp()
            except CorruptDumpError as error:
                problems.append(error)
                self._newest[home] = _LATER_THAN_ANY
        return self._newest[home]

    def read(self, home: str, step: int, problems: list[CorruptDumpError]) -> list[StepTable[TensorRecord]] | None:
        """The records of a step in an index; None if it is damaged, which is added to `problems`."""
        reader = self._readers[home]
        try:
            files = LostFiles(self._root / home)
            return [self._present(home, reader.table(batch), files, problems) for batch in reader.of_step(step)]
        except CorruptDumpError as error:
            problems.append(error)
            return None

    def _present(
        self, home: str, batch: StepTable[TensorRecord], files: LostFiles, problems: list[CorruptDumpError]
    ) -> StepTable[TensorRecord]:
        """The records, without a payload if the file does not exist."""
        with_files = [
            (record, record.payload.relative if isinstance(record.payload, FilePayload | DumpPayload) else None)
            for record in batch.tensors
        ]
        present = files.without_payload(with_files, problems, is_complete=self.is_complete(home))
        return StepTable.of([*batch.ops], present, batch.counted)


def _open_payload(root: Path, file: str, dtype: str, shape: tuple[int, ...]) -> Payload:
    part = _PART_OF_FILE.fullmatch(file)
    if part is None:
        return FilePayload(root, file, dtype, shape)
    return DumpPayload(root, part["file"], cast(IO, part["io"]), int(part["number"]))
