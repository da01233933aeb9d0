"""Reads a rank of a dump: opdump's through its index, any other by its file names.

Files outside of the index (of a step that was cut off, or all if the index is lost) are found by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np

from opdump.errors import CorruptDumpError
from opdump.graph import Graph, graph_of_word, graph_word
from opdump.index.opening import INDEX_NAME
from opdump.index.reader import IndexReader
from opdump.index.runs import ENVIRONMENT_NAME, METADATA, LostFiles, Run, RunChoice, cut_off, read_json_object
from opdump.index.values import FilePayload, inside
from opdump.layouts.base import require_run
from opdump.layouts.mindspore_sync.files import (
    PARAMETER,
    PlaceFiles,
    RankPlace,
    TensorDirectory,
    find_places,
    list_files,
    read_table,
)
from opdump.layouts.mindspore_sync.from_files import (
    PayloadWithHeader,
    PlaceRecords,
    TensorKey,
    TrueNames,
    in_execution_order,
    keyed,
    numbered_as_run,
    records_of_place,
    with_phases,
)
from opdump.records import OpRecord, SkipReason, TensorRecord
from opdump.step_table import StepTable

_GRAPHS, _ORDERS = "graphs", "execution_order"
_GRAPH_STEM = "ms_output_trace_code_graph_"
_ORDER_STEM = "ms_execution_order_graph_"
_HISTORY_STEM = "ms_global_execution_order_graph_"
_Decoded = TypeVar("_Decoded")


class RankTree:
    """The directory of one rank. Steps are read on demand; names and graphs once.

    `run` selects between captures that wrote into the same directory: `latest` takes for each step the last run that has it, a
    number only that run, `all` everything. `problems` collects the read errors: such a tensor is still among the records, and its
    payload raises the same error. With `with_index` False, records are made from the files even if there is an index.
    """

    _open_file: Callable[..., PayloadWithHeader] = staticmethod(FilePayload)
    """Opens the elements of a file that the index or a directory lists."""

    def __init__(
        self,
        root: Path,
        rank_id: int,
        *,
        run: RunChoice = "latest",
        places: Sequence[TensorDirectory] | None = None,
        with_index: bool = True,
    ) -> None:
        self.root = root
        self.rank_id = rank_id
        self.problems: list[CorruptDumpError] = []
        self._told: set[str] = set()
        self._run = run
        self._listed: dict[TensorDirectory, PlaceFiles] = {}
        self._names: dict[int, TrueNames] = {}
        self._graphs: dict[int, Graph | None] = {}
        self._graphs_as_filed: dict[int, Graph | None] = {}
        self.places = tuple(places) if places is not None else find_places(root)
        """The directories that contain tensors, or can."""
        self._index = self._open_index() if with_index else None
        self.places += self._other_places()
        self._places_of_step: dict[int | None, list[TensorDirectory]] = {}
        for place in self.places:
            self._places_of_step.setdefault(place.step, []).append(place)
        self.runs = self._index.runs if self._index is not None else self._runs_by_time()
        self._starts = [run.started for run in self.runs]
        self._complete = {run.id for run in self.runs if run.complete}

    def _other_places(self) -> tuple[TensorDirectory, ...]:
        """Places that are not directories; this layout has none."""
        return ()

    def __repr__(self) -> str:
        return f"RankTree({str(self.root)!r}, rank_id={self.rank_id})"

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps of the selected run or runs that have records, ascending."""
        index = self._index
        batches = index.batches if index is not None else ()
        chosen = {batch.step for batch in batches if not isinstance(self._run, int) or batch.run == self._run}
        indexed = {batch.step for batch in batches}
        for place in self.places:
            if place.step is not None and place.step not in indexed and place.step not in chosen:
                files = self.files(place)
                runs = {self._run_id(file.name.timestamp) for file in files.tensors}
                if self._run in runs or (not isinstance(self._run, int) and (runs or files.statistics)):
                    chosen.add(place.step)
        return tuple(sorted(chosen))

    def files(self, place: TensorDirectory) -> PlaceFiles:
        """The files of one of them."""
        files = self._listed.get(place)
        if files is None:
            files = self._listed[place] = list_files(self.root, place)
        return files

    def is_indexed(self, step: int) -> bool:
        """Whether the index has every file of a step."""
        known = {key: record for _, table in self._batches(step) for key, record in keyed(table.tensors)}
        return not self._unindexed(step, known).tensors

    @property
    def graph_ids(self) -> tuple[int, ...]:
        """The graphs that have data or a file of their own, ascending."""
        found = {place.graph_id for place in self.places}
        for directory, stem in ((_GRAPHS, _GRAPH_STEM), (_ORDERS, _ORDER_STEM)):
            for path in (self.root / directory).glob(f"{stem}*"):
                number = path.name.removeprefix(stem).partition(".")[0]
                graph_id = graph_of_word(number)
                if graph_id is not None:
                    found.add(graph_id)
        return tuple(sorted(found))

    def step(self, step: int) -> StepTable[TensorRecord]:
        """The operators and tensors of a step; none if the selected run does not have it."""
        batches = self._batches(step)
        if len(batches) == 1 and self._run in ("latest", "all", batches[0][0]) and self._is_whole(step, batches[0][1]):
            return batches[0][1]
        known = {key: record for _, table in batches for key, record in keyed(table.tensors)}
        rest = self._unindexed(step, known)
        chosen = self._chosen({run for run, _ in batches} | {self._run_id(op.timestamp) for op in rest.ops})
        ops: list[OpRecord] = []
        tensors: list[TensorRecord] = []
        counted: Counter[SkipReason] = Counter()
        files = LostFiles(self.root)
        for run, table in batches:
            if run in chosen:
                counted.update(table.counted)
                ops.extend(table.ops)
                tensors.extend(self._present(table.tensors, run, files))
        ops, tensors = _joined(ops, tensors)
        rest = _chosen(rest, lambda op: self._run_id(op.timestamp) in chosen)
        if rest.ops and any(not self._is_complete(self._run_id(op.timestamp)) for op in rest.ops):
            self._note(cut_off(self.root, step, len(rest.ops)))
        rest = _after(ops, rest)
        self._note(*rest.problems)
        return StepTable.of((*ops, *rest.ops), (*tensors, *rest.tensors), counted)

    def _chosen(self, runs: set[int]) -> set[int]:
        """Of these runs, those that were selected."""
        if self._run == "all":
            return runs
        if self._run == "latest":
            return {max(runs)} if runs else set()
        return {self._run}

    def _is_whole(self, step: int, table: StepTable[TensorRecord]) -> bool:
        """Whether the index has all of a step in this table, and its elements are known to exist."""
        try:
            # Executions with the same time stamp may be one execution, stored in two parts.
            if len({*table.timestamps}) < len(table.timestamps) or (table.files and not self._has_elements(table)):
                return False
            with_summary = table.with_summary
            for place in self._places_of_step.get(step, ()):
                slots = None
                if table.template is not None:
                    slots = table.template.slots_by_directory.get((place.net_name, place.graph_id))
                rows = 0 if slots is None else np.count_nonzero(with_summary[slots])
                if self.files(place).tensors or not self._has_rows(place, int(rows)):
                    return False
        except CorruptDumpError:
            return False  # the reader of the records reports it
        return True

    def _has_elements(self, table: StepTable[TensorRecord]) -> bool:
        """Whether all files of a step are known to exist; in this layout each file is looked up per record."""
        return False

    def _has_rows(self, place: TensorDirectory, count: int) -> bool:
        """Whether the table of a place, if it exists, has that number of rows."""
        table = self.files(place).statistics
        return table is None or read_table(inside(self.root, table)).count(b"\n") - 1 == count

    def constants(self) -> tuple[TensorRecord, ...]:
        """The constants of every graph, by data id: the last one of each, or all with `run` "all"."""
        found: dict[tuple[int, int, str, int], TensorRecord] = {}
        known: dict[TensorKey, TensorRecord] = {}
        files = LostFiles(self.root)
        for run, record in self._indexed_constants():
            known.update(keyed([record]))
            if not isinstance(self._run, int) or run == self._run:
                (present,) = self._present([record], run, files)
                found[_constant_key(record, run if self._run == "all" else 0)] = present
        for place in self.places:
            if place.step is None:
                part = self._records(place, known)
                self._note(*part.problems)
                for record in part.tensors:
                    if not isinstance(self._run, int) or self._run_id(record.op.timestamp) == self._run:
                        number = record.op.occurrence if self._run == "all" else 0
                        found[_constant_key(record, number)] = replace(record, op=replace(record.op, occurrence=0))
        return tuple(found[key] for key in sorted(found))

    def graph(self, graph_id: int) -> Graph | None:
        """The graph of that number from its .pb, or from its .ir if that cannot be read; None if there is neither.

        Its operators have the names in the dump files, which may differ from those in a graph file of MindSpore.
        """
        if graph_id not in self._graphs:
            graph = self._graph_as_filed(graph_id)
            if graph is not None and graph.by_mindspore and self._is_numbered_anew:
                counts: Counter[str] = Counter()
                for earlier in (each for each in self.graph_ids if each < graph_id):
                    before = self._graph_as_filed(earlier)
                    if before is not None and before.by_mindspore:
                        numbered_as_run(before, counts)
                graph = numbered_as_run(graph, counts)
            self._graphs[graph_id] = graph
        return self._graphs[graph_id]

    def _graph_as_filed(self, graph_id: int) -> Graph | None:
        if graph_id not in self._graphs_as_filed:
            from opdump.layouts.graph_files.mindspore import decode_ir, decode_pb

            name = f"{_GRAPH_STEM}{graph_word(graph_id)}"
            graph = self._decoded(f"{_GRAPHS}/{name}.pb", decode_pb)
            if graph is None:
                graph = self._decoded(f"{_GRAPHS}/{name}.ir", decode_ir)
            self._graphs_as_filed[graph_id] = with_phases(graph) if graph is not None and graph.by_mindspore else graph
        return self._graphs_as_filed[graph_id]

    @cached_property
    def _is_numbered_anew(self) -> bool:
        """Whether MindSpore renumbers operators after writing their graph: since 2.7, when file names have an element type."""
        files = (file for place in self.places for file in self.files(place).tensors)
        return next((bool(file.name.dtype) for file in files), True)

    def history(self, graph_id: int) -> tuple[int, ...]:
        """The steps in the execution history of a graph; a second run repeats them."""
        from opdump.layouts.graph_files.mindspore import decode_execution_history

        name = f"{_ORDERS}/{_HISTORY_STEM}{graph_word(graph_id)}.csv"
        return self._decoded(name, decode_execution_history) or ()

    def execution_order(self, graph_id: int) -> tuple[str, ...]:
        """The operators of a graph, in the order known when the graph was written, with their names in `graph`."""
        from opdump.layouts.graph_files.mindspore import decode_execution_order

        name = f"{_ORDERS}/{_ORDER_STEM}{graph_word(graph_id)}.csv"
        order = self._decoded(name, decode_execution_order) or ()
        filed, graph = self._graph_as_filed(graph_id), self.graph(graph_id)
        if filed is graph or filed is None or graph is None:
            return order
        names = {one.op_name: other.op_name for one, other in zip(filed.nodes, graph.nodes, strict=True)}
        return tuple(names.get(each, each) for each in order)

    def _open_index(self) -> IndexReader | None:
        relative = f"{METADATA}/{INDEX_NAME}"
        path = inside(self.root, relative)
        try:
            if not path.exists():
                return None
            if not path.is_file():
                raise CorruptDumpError(f"{path}: is not a regular file; an index was expected")
            return IndexReader(path, self.root, self._open_file)
        except CorruptDumpError as error:
            self._note(error)
            return None
        except OSError as error:
            self._note(CorruptDumpError(f"{path}: cannot be read ({error.strerror}); names are taken from the files"))
            return None

    def _batches(self, step: int) -> list[tuple[int, StepTable[TensorRecord]]]:
        """The runs and tables of the batches of a step."""
        index = self._index
        if index is None:
            return []
        try:
            return [(batch.run, index.table(batch)) for batch in index.of_step(step)]
        except CorruptDumpError as error:
            self._note(error)
            return []

    def _indexed_constants(self) -> Iterator[tuple[int, TensorRecord]]:
        index = self._index
        if index is None:
            return
        try:
            yield from index.constants()
        except CorruptDumpError as error:
            self._note(error)

    def _indexed_names(self, graph_id: int) -> tuple[tuple[str, str], ...]:
        try:
            return self._index.op_names(graph_id) if self._index is not None else ()
        except CorruptDumpError as error:
            self._note(error)
            return ()

    def _unindexed(self, step: int, known: Mapping[TensorKey, TensorRecord]) -> PlaceRecords:
        return in_execution_order(self._records(place, known) for place in self._places_of_step.get(step, ()))

    def _records(self, place: TensorDirectory, known: Mapping[TensorKey, TensorRecord]) -> PlaceRecords:
        names = self.true_names(place.graph_id)
        return records_of_place(self.root, self.rank_id, place, self.files(place), names, known, self._open_file)

    def true_names(self, graph_id: int) -> TrueNames:
        """Finds the true names of a graph's operators from those in file names."""
        names = self._names.get(graph_id)
        if names is None:
            indexed = self._indexed_names(graph_id)
            names = self._names[graph_id] = TrueNames(
                (*self.execution_order(graph_id), *(name for op_type, name in indexed if op_type != PARAMETER)),
                (name for op_type, name in indexed if op_type == PARAMETER),
                self.graph(graph_id),
            )
        return names

    def _present(self, records: Sequence[TensorRecord], run: int, files: LostFiles) -> Sequence[TensorRecord]:
        """The records, without a payload if the file does not exist."""
        problems: list[CorruptDumpError] = []
        with_files = [
            (record, record.payload.relative if isinstance(record.payload, FilePayload) else None) for record in records
        ]
        present = files.without_payload(with_files, problems, is_complete=self._is_complete(run))
        self._note(*problems)
        return present

    def _is_complete(self, run: int) -> bool:
        """Whether a run ended normally; without an index, every run counts as complete."""
        return self._index is None or run in self._complete

    def _run_id(self, time: int) -> int:
        return self.runs[run_of(time, self._starts)].id if self.runs else 0

    def _runs_by_time(self) -> tuple[Run, ...]:
        stamps = [
            (file.name.timestamp, place.step)
            for place in self.places
            if place.step is not None
            for file in self.files(place).tensors
        ]
        history = most_executions(self.history(graph_id) for graph_id in self.graph_ids)
        starts = run_starts(stamps, history)
        facts = read_json_object(self.root / METADATA / ENVIRONMENT_NAME)
        is_mindspore = "ms_version" in facts
        unknown = "the index cannot be read" if self.problems else "there is no index"
        return tuple(
            Run(
                id=number,
                rank_id=self.rank_id,
                started=start,
                device_target=str(facts.get("device_target", "")),
                framework="mindspore" if is_mindspore else str(facts.get("framework", "")),
                framework_version=str(facts.get("ms_version" if is_mindspore else "framework_version", "")),
                opdump_version=str(facts.get("opdump_version", "")),
                end_unknown="" if is_mindspore else unknown,
            )
            for number, start in enumerate(starts, start=1)
        )

    def _decoded(self, relative: str, decode: Callable[..., _Decoded]) -> _Decoded | None:
        path = inside(self.root, relative)
        try:
            return decode(read_table(path), where=str(path)) if path.exists() else None
        except CorruptDumpError as error:
            self._note(error)
        except OSError as error:
            self._note(CorruptDumpError(f"{path}: cannot be read ({error.strerror})"))
        return None

    def _note(self, *problems: CorruptDumpError) -> None:
        for problem in problems:
            if str(problem) not in self._told:
                self._told.add(str(problem))
                self.problems.append(problem)


def read_places(path: Path, places: Sequence[RankPlace], run: RunChoice = "latest") -> tuple[RankTree, ...]:
    """The ranks that `path` refers to. Raises NotInDumpError if none has the run of that number."""
    trees = tuple(RankTree(place.root, place.rank_id, run=run, places=place.places) for place in places)
    require_run(path, run, trees)
    return trees


def _joined(ops: list[OpRecord], tensors: list[TensorRecord]) -> tuple[list[OpRecord], list[TensorRecord]]:
    """Merge executions that were stored in two parts, because another thread ended the step while they ran."""
    first: dict[tuple[int, str], OpRecord] = {}
    again: dict[int, OpRecord] = {}
    for op in ops:
        known = first.setdefault((op.timestamp, op.op_name), op)
        if known is not op:
            again[id(op)] = known
    if not again:
        return ops, tensors
    return (
        [op for op in ops if id(op) not in again],
        [replace(record, op=again[id(record.op)]) if id(record.op) in again else record for record in tensors],
    )


def _chosen(records: PlaceRecords, wanted: Callable[[OpRecord], bool]) -> PlaceRecords:
    kept = {id(op) for op in records.ops if wanted(op)}
    return replace(
        records,
        ops=tuple(op for op in records.ops if id(op) in kept),
        tensors=tuple(record for record in records.tensors if id(record.op) in kept),
    )


def _after(earlier: Sequence[OpRecord], records: PlaceRecords) -> PlaceRecords:
    """`records` numbered after `earlier`: their order, and the occurrences of each name from 0 without a gap."""
    counts: dict[tuple[int, str], int] = {}
    for op in earlier:
        key = (op.graph_id, op.op_name)
        counts[key] = max(counts.get(key, 0), op.occurrence + 1)
    first = max((op.order for op in earlier), default=-1) + 1
    renewed: dict[int, OpRecord] = {}
    for position, op in enumerate(records.ops, start=first):
        key = (op.graph_id, op.op_name)
        occurrence = counts.get(key, 0)
        counts[key] = occurrence + 1
        renewed[id(op)] = replace(op, order=position, occurrence=occurrence)
    return replace(
        records,
        ops=tuple(renewed[id(op)] for op in records.ops),
        tensors=tuple(replace(record, op=renewed[id(record.op)]) for record in records.tensors),
    )


def _constant_key(record: TensorRecord, number: int) -> tuple[int, int, str, int]:
    name = record.op.op_name
    return (record.op.graph_id, len(name), name, number)


# Separates the runs of several captures in one directory.


def run_starts(stamps: Iterable[tuple[int, int]], history: Mapping[int, int]) -> tuple[int, ...]:
    """The first time stamps of the runs that left files with these (timestamp, step).

    Steps grow within a run, so a smaller step after a larger one begins a new run. `history` is the number of executions of each
    step (the highest count in the graphs' execution histories, to which MindSpore appends): if a step was executed more often
    than runs were found so far, its files are split at their longest pauses. Empty if there are no files.
    """
    ordered = sorted(stamps)
    starts: set[int] = set()
    previous = -1
    for time, step in ordered:
        if not starts or step < previous:
            starts.add(time)
        previous = step
    for step, executed in sorted(history.items()):
        times = [time for time, its_step in ordered if its_step == step]
        known = sorted(starts)
        seen = len({run_of(time, known) for time in times})
        missing = executed - seen
        if missing > 0 and len(times) > 1:
            pauses = sorted(
                ((later - earlier, later) for earlier, later in pairwise(times) if later not in starts),
                reverse=True,
            )
            starts.update(later for pause, later in pauses[:missing] if pause > 0)
    return tuple(sorted(starts))


def run_of(time: int, starts: Sequence[int]) -> int:
    """Index of the run of a time stamp: the last run that began before it, otherwise the first."""
    index = 0
    for position, start in enumerate(starts):
        if start <= time:
            index = position
    return index


def most_executions(histories: Iterable[Sequence[int]]) -> dict[int, int]:
    """The number of executions of each step: the highest count in the histories of the graphs."""
    most: dict[int, int] = {}
    for history in histories:
        for step, count in Counter(history).items():
            most[step] = max(most.get(step, 0), count)
    return most
