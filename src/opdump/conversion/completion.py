"""Completes the directory of a synchronous dump that MindSpore wrote: adds what opdump's dumps have and MindSpore's CPU dumps
lack.

    rank_0/.dump_metadata/index.sqlite    operators in running order, with their lines, makers and statistics
    rank_0/Net/0/0/statistic.csv          which MindSpore computes only on devices
    rank_0/Net/0/0/*.BFloat16.npy         as float32, instead of elements that numpy cannot read

Everything is derived from the files, so completion can be repeated after MindSpore has added some, on any machine. Each file is
replaced as a whole, the index last, so the directory is a readable dump at any time.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opdump.configs.dialects import resolve_plan
from opdump.errors import ConfigError, CorruptDumpError, DumpPathError, UnknownLayoutError, UnsupportedDtypeError
from opdump.index.opening import INDEX_NAME
from opdump.index.runs import CONFIG_NAME, METADATA, Run
from opdump.index.values import FilePayload, inside
from opdump.index.writer import IndexWriter, RunFacts, own_version
from opdump.interpreter.leftovers import SUFFIX, own_prefix
from opdump.kernels import summarise
from opdump.layouts.mindspore_sync.files import (
    PARAMETER,
    STATISTIC_NAME,
    PlaceFiles,
    locate,
    op_name_in_files,
    read_table,
)
from opdump.layouts.mindspore_sync.reader import RankTree
from opdump.layouts.mindspore_sync.statistic_csv import StatisticEncoder
from opdump.plan import DumpPlan
from opdump.records import OpRecord, StatisticValue, TensorRecord
from opdump.sink import DirectorySink
from opdump.sink.npy import read_npy_header
from opdump.sink.open_directories import prepare
from opdump.statistics import ElementStatistics, SummaryStatistics

Progress = Callable[[str, int, int], None]
COMPLETED: Final = "completed"
"""Key in the totals of a run in the index: the index was derived from files that MindSpore wrote, and can be derived again."""


@dataclass(slots=True)
class CompletedRank:
    """The work done in the directory of a rank."""

    rank_id: int
    path: str
    was_complete: bool = False
    """Whether there was nothing to do."""
    is_empty: bool = False
    """Whether MindSpore left no tensors there."""
    runs: int = 0
    steps: int = 0
    operators: int = 0
    with_lines: int = 0
    """Number of operators with a known source line."""
    tensors: int = 0
    statistics: int = 0
    """Number of statistic.csv files written."""
    repaired: int = 0
    """Number of bfloat16 files that numpy could not read."""


@dataclass(slots=True)
class Completion:
    """The result for a dump. `problems`: unreadable files, which are left unchanged."""

    path: Path
    statistics: tuple[str, ...] = ()
    ranks: list[CompletedRank] = field(default_factory=list)
    problems: list[CorruptDumpError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False


def complete(path: Path, statistics: Sequence[str] = (), *, progress: Progress | None = None) -> Completion:
    """Complete the dump at `path`, a dump directory or one of its ranks, in place.

    `statistics` are the columns of statistic.csv; the default is the configuration of the dump. After Ctrl-C, the finished steps
    have their files, and `interrupted` is set.

    Raises UnknownLayoutError if there is no such dump or opdump captured it, and DumpPathError if it cannot be written.
    """
    began = time.monotonic()
    done = Completion(path)
    try:
        for place in locate(path):
            # The graphs and the index always cover the whole rank, even if `path` names a part of it.
            state = RankState(place.root, place.rank_id, COMPLETED)
            plan = _plan(place.root, statistics, done)
            done.statistics = done.statistics or plan.statistic_category
            rank = CompletedRank(place.rank_id, str(place.root))
            done.ranks.append(rank)
            if not state.files.runs:
                rank.is_empty = True
                continue
            if state.is_complete(StatisticEncoder(plan.statistic_category).header):
                rank.was_complete = True
                continue
            _RankCompletion(state, plan, rank, done, progress).run()
    except KeyboardInterrupt:
        done.interrupted = True
    done.seconds = time.monotonic() - began
    return done


class _RankCompletion:
    """The work on one rank."""

    def __init__(
        self, state: RankState, plan: DumpPlan, rank: CompletedRank, done: Completion, progress: Progress | None
    ) -> None:
        self._root = state.root
        self._plan = plan
        self._rank = rank
        self._done = done
        self._progress = progress
        self._files = state.files
        self._runs = [(run, state.run_alone(run.id)) for run in state.files.runs]
        self._encoder = StatisticEncoder(plan.statistic_category, trailing_comma=plan.trailing_comma)
        self._elements = ElementStatistics(plan.statistic_category)
        self._read = 0
        self._all = sum(len(state.files.files(place).tensors) for place in state.files.places)
        self._counts = [{"executed": 0, "captured": 0, "tensors": 0} for _ in self._runs]
        self._ends = [run.started for run, _ in self._runs]
        """The last time stamp of each run."""
        self._told: set[str] = set()

    def run(self) -> None:
        prepare(self._root)
        if not os.access(self._root, os.W_OK | os.X_OK):
            raise DumpPathError(
                f"{self._root}: is not writable; complete a copy of the dump, opdump complete DIR -o OUT"
            )
        sink = DirectorySink(self._root)
        hidden = f"{METADATA}/{own_prefix()}{os.urandom(6).hex()}{SUFFIX}"
        try:
            sink.make_directory(hidden)
            index = self._root / hidden
            writers = [IndexWriter(index, self._facts(run)) for run, _ in self._runs]
            for step in self._files.steps:
                self._complete_step(step, writers, sink)
                self._rank.steps += 1
            sink.flush()
            for writer, totals, ended in zip(writers, self._counts, self._ends, strict=True):
                writer.end_run({**totals, COMPLETED: 1}, ended=ended)
            # The journal of another index must not be applied to this one.
            (self._root / METADATA / f"{INDEX_NAME}-journal").unlink(missing_ok=True)
            os.replace(index / INDEX_NAME, self._root / METADATA / INDEX_NAME)
        finally:
            try:
                sink.close()
            finally:
                shutil.rmtree(self._root / hidden, ignore_errors=True)
        self._rank.runs = len(self._runs)

    def _facts(self, run: Run) -> RunFacts:
        return RunFacts(
            rank_id=self._rank.rank_id,
            device_target=run.device_target,
            framework="mindspore",
            framework_version=run.framework_version,
            opdump_version=own_version(),
            command=(),
            plan=self._plan.to_json(),
            started=run.started,
        )

    def _complete_step(self, step: int, writers: Sequence[IndexWriter], sink: DirectorySink) -> None:
        places = [place for place in self._files.places if place.step == step]
        tables = {place.relative: _Table(self._files.files(place)) for place in places}
        directories = {(place.net_name, place.graph_id): place.relative for place in places}
        for number, ((_, tree), writer) in enumerate(zip(self._runs, writers, strict=True)):
            content = tree.step(step)
            self._tell(tree.problems)
            if not content.ops:
                continue
            tensors: list[TensorRecord] = []
            files: list[str | None] = []
            for record in content.tensors:
                file = record.payload.relative if isinstance(record.payload, FilePayload) else None
                completed = record if file is None else self._completed(record, sink)
                if completed is None:
                    continue  # for unreadable files, which are found by name
                tensors.append(completed)
                files.append(file)
                if completed.statistics:
                    op = record.op
                    table = tables[file.rpartition("/")[0] if file else directories[op.net_name, op.graph_id]]
                    self._ends[number] = max(self._ends[number], table.add(completed, file, self._encoder))
                    table.is_complete &= record.statistics.keys() >= set(self._encoder.categories)
            self._count(content.ops, tensors, self._counts[number])
            writer.write_batch(step, writer.batch_of(content.ops, tensors), files)
        for directory, table in tables.items():
            if not table.is_complete:
                header = self._encoder.header.encode("utf-8", "backslashreplace")
                text = header + self._encoder.text(table.starts, table.rows)
                sink.write_bytes(f"{directory}/{STATISTIC_NAME}", text)
                self._rank.statistics += 1

    def _count(self, ops: Iterable[OpRecord], tensors: Sequence[TensorRecord], totals: dict[str, int]) -> None:
        # Values without an operator (parameters) are not counted as operators.
        operators = [op for op in ops if op.op_type != PARAMETER]
        for name, count in (("executed", len(operators)), ("captured", len(operators)), ("tensors", len(tensors))):
            totals[name] += count
        self._rank.operators += len(operators)
        self._rank.with_lines += sum(1 for op in operators if op.stack)
        self._rank.tensors += len(tensors)

    def _completed(self, record: TensorRecord, sink: DirectorySink) -> TensorRecord | None:
        """The record with its statistics, after its file was made readable for numpy; None if it cannot be read."""
        payload = record.payload
        assert isinstance(payload, FilePayload)
        self._read += 1
        if self._progress is not None:
            self._progress("completing", self._read, self._all)
        try:
            stored = read_npy_header(inside(self._root, payload.relative)).dtype
            array = payload.to_host()
        except CorruptDumpError as error:
            self._tell([error])
            return None
        if stored == "bfloat16":
            sink.write_array(payload.relative, array)
            self._rank.repaired += 1
        if record.sample:
            return record  # its statistics cover the whole tensor
        return replace(record, statistics=self._statistics(record.dtype, array))

    def _statistics(self, dtype: str, array: npt.NDArray[Any]) -> SummaryStatistics | dict[str, StatisticValue]:
        raw = array
        if dtype == "bfloat16" and self._elements and array.dtype == np.float32:
            raw = (np.ascontiguousarray(array).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        others = self._elements.of(raw, lambda: array) if self._elements else {}
        try:
            summary = summarise(array)
        except UnsupportedDtypeError:  # complex numbers
            return others
        if self._elements.of_summary:
            others |= self._elements.from_summary(summary)
        return SummaryStatistics(summary, others)

    def _tell(self, problems: Iterable[CorruptDumpError]) -> None:
        for problem in problems:
            if str(problem) not in self._told:
                self._told.add(str(problem))
                self._done.problems.append(problem)


class _Table:
    """The statistic.csv of one step of a graph: the beginnings of its rows, and the tensors in them."""

    def __init__(self, files: PlaceFiles) -> None:
        self._names = {file.relative: file.name for file in files.tensors}
        self.starts: list[str] = []
        self.rows: list[TensorRecord] = []
        self.is_complete = True
        """Whether the existing table has all requested statistics."""

    def add(self, record: TensorRecord, file: str | None, encoder: StatisticEncoder) -> int:
        """Add a row; returns its time stamp."""
        op = record.op
        stored = self._names.get(file or "")
        timestamp = op.timestamp if stored is None else stored.timestamp
        is_old = stored is not None and not stored.dtype
        name = op_name_in_files(op.op_type, op.op_name, "mindspore-2.3") if is_old else op.op_name
        self.starts.append(encoder.start(op, name, str(timestamp)))
        self.rows.append(record)
        return timestamp


def _plan(root: Path, statistics: Sequence[str], done: Completion) -> DumpPlan:
    """The plan of the dump, or the default plan if its config is missing, with the requested statistics."""
    settings: dict[str, Any] = {"path": root.parent, "saved_data": "full"}
    settings |= {"statistic_category": list(statistics)} if statistics else {}
    config = root / METADATA / CONFIG_NAME
    default = resolve_plan(None, settings, environ={})  # raises if `statistics` are invalid
    plan = None
    if config.is_file():
        problem: ConfigError | None = None
        # MindSpore accepts steps that can match nothing.
        for steps in ({}, {"iteration": "all"}):
            try:
                plan = resolve_plan(config, {**settings, **steps}, environ={})
                break
            except ConfigError as error:
                problem = problem or error
        if plan is None:
            done.warnings.append(f"the configuration of the dump is invalid; the default one is used: {problem}")
    plan = plan or default
    return replace(plan, config_text="", warnings=())


# The content of a rank's directory before completion: the files that MindSpore wrote, and the index of an earlier completion.


class RankState:
    """A rank of a dump. `mark` is a key in the totals of runs in an index written by a completion.

    Raises UnknownLayoutError for a dump that opdump captured, because its index contains more than its files.
    """

    def __init__(self, root: Path, rank_id: int, mark: str) -> None:
        self.root = root
        self._rank_id = rank_id
        self._mark = mark
        self._indexed = RankTree(root, rank_id, run="all") if (root / METADATA / INDEX_NAME).exists() else None
        if self._indexed is not None and any(
            run.opdump_version and mark not in run.totals and not run.end_unknown for run in self._indexed.runs
        ):
            raise UnknownLayoutError(
                f"{root}: was captured by opdump, so it is complete already; expected a dump that MindSpore wrote"
            )

    @cached_property
    def files(self) -> RankTree:
        """The rank by its files, with all runs."""
        return RankTree(self.root, self._rank_id, run="all", with_index=False)

    def run_alone(self, run: int) -> RankTree:
        """One run by its files."""
        return RankTree(self.root, self._rank_id, run=run, places=self.files.places, with_index=False)

    def is_complete(self, header: str) -> bool:
        """Whether the index has all files, each statistic.csv has the columns of `header`, and numpy can read every file."""
        tree = self._indexed
        if tree is None or len(tree.runs) != len(self.files.runs):
            return False
        if not all(run.complete and self._mark in run.totals for run in tree.runs):
            return False
        columns = set(header.strip().split(","))
        return all(self._step_is_complete(tree, step, columns) for step in self.files.steps)

    def _step_is_complete(self, tree: RankTree, step: int, columns: set[str]) -> bool:
        if not tree.is_indexed(step):
            return False
        content = tree.step(step)
        with_rows = {(record.op.net_name, record.op.graph_id) for record in content.tensors if record.statistics}
        for place in self.files.places:
            if place.step == step and (place.net_name, place.graph_id) in with_rows:
                table = self.files.files(place).statistics
                head = b"" if table is None else read_table(inside(self.root, table)).partition(b"\n")[0]
                if not columns <= set(head.decode("utf-8", "replace").strip().split(",")):
                    return False
        return not any(
            _is_raw(record.payload)
            for record in content.tensors
            if record.dtype == "bfloat16" and isinstance(record.payload, FilePayload)
        )


def _is_raw(payload: FilePayload) -> bool:
    """Whether a file has elements of two bytes that numpy cannot read."""
    try:
        return read_npy_header(payload.path).dtype == "bfloat16"
    except CorruptDumpError:
        return False


# Copies a dump, so that the copy can be completed and the original stays unchanged.

_DIRECTORY_MODE = 0o700


def copy_dump(source: Path, out: Path, *, progress: Callable[[str, int, int], None] | None = None) -> Path:
    """Copy the ranks of a dump into `out`, with file modes and times; links are left out. Returns `out`.

    Raises UnknownLayoutError if `source` is not a dump, and DumpPathError if `out` is not empty or cannot be written.
    """
    ranks = locate(source)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DumpPathError(f"{out}: is not empty; name a new or empty directory after -o")
    if any(rank.root in (out.resolve(), *out.resolve().parents) for rank in ranks):
        raise DumpPathError(f"{out}: is inside the dump to be copied; name a directory outside of it")
    files = [
        (Path(directory) / name, out / f"rank_{rank.rank_id}" / os.path.relpath(directory, rank.root) / name)
        for rank in ranks
        for directory, _, names in os.walk(rank.root)
        for name in names
        if not os.path.islink(os.path.join(directory, name))
    ]
    try:
        for number, (file, target) in enumerate(files, start=1):
            target.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
            shutil.copy2(file, target)
            if progress is not None:
                progress("copying", number, len(files))
    except OSError as error:
        raise DumpPathError(
            f"{error.filename}: cannot be copied into {out} ({error.strerror}): free space, or name another directory after -o"
        ) from error
    return out
