"""Reads a device of a dump. Directories are listed when the dump is opened, headers are read when a step is requested."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from opdump.dump_file.names import DumpName
from opdump.errors import CorruptDumpError
from opdump.graph import Graph
from opdump.index.payload import inside
from opdump.index.reader import BatchRecords
from opdump.index.runs import Run, RunChoice, cut_off, left_out
from opdump.layouts.ascend.files import ExecutionFiles, PlaceFiles, list_place
from opdump.layouts.ascend.indexed import Indexes
from opdump.layouts.ascend.places import DevicePlaces, Found, Place, started
from opdump.layouts.ascend.records import Executed, PlaceReader
from opdump.layouts.base import ModelDirectories, StepContent, require_run
from opdump.layouts.mindspore_sync.reader import RankTree
from opdump.layouts.mindspore_sync.true_names import TrueNames
from opdump.records import OpRecord, TensorRecord

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
        self._listed: dict[Place, PlaceFiles] = {}
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
        places = [place for place in self._places if self._is_chosen(place) and self._has_records(place)]
        homes = {self._indexes.home(place) for place in places}
        listed = {step for home in homes if home is not None for step in self._indexes.steps(home)}
        return tuple(sorted({place.step for place in places if not self._unlisted(place).is_empty} | listed))

    @property
    def graph_ids(self) -> tuple[int, ...]:
        """The models with data, and the graphs with a file beside the dump, ascending."""
        beside = self._graphs.graph_ids if self._graphs is not None else ()
        return tuple(sorted({*beside, *(place.graph_id for place in self._places)}))

    def step(self, step: int) -> StepContent:
        """The records of a step; none if the selected run does not have it.

        Records in opdump's index are read from there; the rest, what a killed run or a device left, from the files.
        """
        places = [place for place in self._places if self._is_chosen(place) and self._has_records(place)]
        homes = {place: self._indexes.home(place) for place in places}
        indexed = {home for home in homes.values() if home is not None and step in self._indexes.steps(home)}
        places = [place for place, home in homes.items() if place.step == step or home in indexed]
        if self._run == "latest" and places:
            last = max(self._run_of[place] for place in places)
            places = [place for place in places if self._run_of[place] == last]
        indexed &= {homes[place] for place in places}
        problems: list[CorruptDumpError] = []
        listed = {home: self._indexes.read(home, step, problems) for home in sorted(indexed)}
        batches = [batch for found in listed.values() if found is not None for batch in found]
        stamps = {op.timestamp for batch in batches for op in batch.ops}
        reader = PlaceReader(self.root, self.rank_id, problems)
        executed = []
        for place in places:
            home = homes[place]
            is_damaged = home in listed and listed[home] is None
            if place.step == step:
                files = self._files(place) if is_damaged else self._unlisted(place)
                executed += reader.read(place, files, self._true_names(place.graph_id))
            if home in indexed and not place.has_step:
                # Of single operators: the index knows in which step they overflowed.
                files = _overflows(self._files(place), stamps)
                executed += reader.read(replace(place, data_index=step), files, self._true_names(place.graph_id))
        content = _with_index(_content(executed), batches)
        self._note(*problems)
        return content

    def _unlisted(self, place: Place) -> PlaceFiles:
        """The files of a place that no index lists: they were added later, or describe an overflow."""
        files = self._files(place)
        home = self._indexes.home(place)
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
                # Beside single operators of every step; those of an operator that failed are in no {time}.
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

    def _has_records(self, place: Place) -> bool:
        return not self._files(place).is_empty or self._indexes.home(place) == place.relative

    def _is_chosen(self, place: Place) -> bool:
        return not isinstance(self._run, int) or self._run_of[place] == self._run

    def _files(self, place: Place) -> PlaceFiles:
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
            home = self._indexes.home(place)
            if home is not None:
                told.setdefault(run, {})[home] = self._indexes.runs(home)
        return tuple(
            _described(run, self.rank_id, moment, [each for runs in told.get(run, {}).values() for each in runs])
            for run, moment in sorted(times.items())
        )

    def _first_stamp(self, place: Place) -> int:
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


def _runs_of_places(places: Sequence[Place]) -> dict[Place, int]:
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


def _with_index(content: StepContent, batches: Sequence[BatchRecords]) -> StepContent:
    ops, tensors, counted = list(content.ops), list(content.tensors), Counter(content.counted)
    listed = [op for batch in batches for op in batch.ops]
    # Operators outside of the index came after those in it.
    first = max((op.order for op in listed), default=-1) + 1
    later = {id(op): replace(op, order=first + number) for number, op in enumerate(ops)}
    for batch in batches:
        counted.update(batch.counted)
    return StepContent(
        (*listed, *later.values()),
        (
            *(tensor for batch in batches for tensor in batch.tensors),
            *(replace(tensor, op=later[id(tensor.op)]) for tensor in tensors),
        ),
        counted,
    )


def _content(executed: Sequence[Executed]) -> StepContent:
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
    return StepContent(tuple(ops), tuple(tensors))
