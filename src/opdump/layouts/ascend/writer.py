"""Writes a dump like Ascend devices: one file for each operator.

    {dump_path}/{time}/{device_id}/                                    single operators
    {dump_path}/{time}/{device_id}/{model_name}/{model_id}/{data_index}/   a model's
        {op_type}.{op_name}.{task_id}.{stream_id}.{timestamp}          all its tensors, or .csv with their statistics
        {api}_{number}_L2.{api}.{task_id}.{stream_id}.{timestamp}      a kernel of a single operator: its inputs; its outputs
        Opdebug.Node_OpDebug.{task_id}.{stream_id}.{timestamp}         how an operator overflowed
        mapping.csv                                                    long names
    {dump_path}/extra-info/data-dump/{device_id}/                      the operator that failed

and, hidden beside them in `{device_id}/.dump_metadata/`, the index: true names, order, stacks, skipped operators with reasons.
Nothing is created before there is data to write: no overflow, no directory. docs/files.md#names lists the names.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from opdump.checks.overflow import OverflowStatus
from opdump.degradation import Degradation
from opdump.dump_file import DumpFile
from opdump.dump_file.names import MAPPING_NAME, UNKNOWN_ID, DumpName, ExceptionName
from opdump.dump_file.writing import encode_dump_file
from opdump.graph import Graph, graph_word
from opdump.index.batch import Batch, Pattern
from opdump.index.opening import INDEX_NAME
from opdump.index.runs import METADATA
from opdump.index.writer import IndexWriter, RunFacts
from opdump.layouts.ascend.device_names import api_name, hashed_name
from opdump.layouts.ascend.operator_csv import encode_operator_csv, is_classic
from opdump.layouts.ascend.operator_files import is_filed, operator_file, places
from opdump.layouts.ascend.overflow_files import overflow_file_of
from opdump.layouts.ascend.repeated_tables import RepeatedTables, repeated_tables
from opdump.layouts.ascend.run_times import claimed_time, unused_time
from opdump.layouts.mindspore_sync.names import sanitise
from opdump.layouts.mindspore_sync.statistic_files import form_of
from opdump.plan import DumpPlan
from opdump.records import FiledTensor, OpRecord, SkipReason, TensorRecord
from opdump.sink import DirectorySink
from opdump.sink.open_directories import prepare

_FILE_MODE = 0o600
_EXCEPTION_MODE = 0o400
_LONGEST_NAME = 255
_EXCEPTIONS = "extra-info/data-dump"


class AscendWriter:
    """Writes the records of one rank. A step is a `data_index`; the model is `net_name` and `graph_id`, none for a single
    operator.

    Raises DumpPathError at the first call after a file could not be written. In a process forked from the one that created the
    writer, every call does nothing.
    """

    def __init__(self, plan: DumpPlan, run: RunFacts, *, device_id: int = 0, started: float | None = None) -> None:
        self.plan = plan
        self.root = Path(plan.path)
        prepare(*_earlier_dumps(self.root))
        self.sink = DirectorySink(self.root, capacity=plan.queue_bytes, file_mode=_FILE_MODE, lazy=True)
        self._started = time.time() if started is None else started
        self._time: str | None = None
        self._device_id = device_id
        self._run = run
        self._process = os.getpid()
        self._indexes: dict[str, IndexWriter] = {}
        self._appending = threading.Lock()
        self._closed = False
        self._degraded: list[Degradation] = []
        """Facts to be added to the indexes that do not exist yet."""
        self._failed = 0
        """Millisecond of the last operator that failed."""
        self._calls = itertools.count()
        self._is_classic = is_classic(plan.statistic_category)
        self._last: tuple[Pattern, Sequence[int]] | None = None
        """The form of the last batch, if its tables can be filled."""
        self._repeated: RepeatedTables | None = None
        """The filler for a batch that repeats the last one; created when needed."""

    @property
    def time(self) -> str:
        """The directory of this run: the one it has, or would get now."""
        return self._time or unused_time(self.root, self._device_id, self._started)

    def write_operator(self, op: OpRecord, tensors: Sequence[TensorRecord]) -> Sequence[str | None]:
        """Queue the file of an operator; returns for each tensor its position, relative to the index: `{file}#{io}:{number}`."""
        if not any(record.data_size for record in tensors if is_filed(record)):
            return [None] * len(tensors)
        self._begin(op)
        directory, name = self._directory(op), self._name(op)
        if not self._is_api_call(op):
            return self._write(directory, str(name), operator_file(op, tensors), op, tensors)
        # For a call of a single operator's API, the inputs are one file and the outputs another, with a later time. The
        # index has the later time, because a file later than everything in the index would be taken for one that is
        # missing there.
        files: dict[int, str | None] = {}
        for earlier, io in ((1, "input"), (0, "output")):
            side = [record for record in tensors if record.io == io]
            if any(record.data_size for record in side if is_filed(record)):
                named = replace(name, timestamp=op.timestamp - earlier)
                written = self._write(directory, str(named), operator_file(op, side), op, side)
                files.update((id(record), file) for record, file in zip(side, written, strict=True))
        return [files.get(id(record)) for record in tensors]

    def write_overflow(self, op: OpRecord, status: OverflowStatus) -> None:
        """Queue the overflow file of an operator, beside its dump."""
        # Its task differs from the operator's, whose number is in the payload.
        name = DumpName("Opdebug", "Node_OpDebug", UNKNOWN_ID, op.stream_id, op.timestamp)
        file = overflow_file_of(op, status)
        self._write_file(self._directory(op), str(name), file)

    def write_exception(self, op: OpRecord, tensors: Sequence[TensorRecord], message: str) -> Sequence[str | None]:
        """Queue the file of an operator that failed: its inputs, and its error message."""
        self._begin(op)
        with self._appending:
            # In the name, only the millisecond distinguishes failures.
            self._failed = moment = max(self._failed + 1, op.timestamp // 1000)
        stamp = int(f"{time.strftime('%Y%m%d%H%M%S', time.localtime(moment / 1000))}{moment % 1000:03d}")
        if self.plan.exception_detail == "norm":
            name = str(DumpName(sanitise(op.op_type), sanitise(op.op_name), op.task_id, None, stamp))
        else:
            name = str(ExceptionName("exception_info", op.stream_id, op.task_id, stamp))
        file = operator_file(op, tensors, message=f"{op.op_type} {op.op_name}: {message}")
        directory = f"{_EXCEPTIONS}/{self._device_id}"
        files = self._write(directory, name, file, op, tensors)
        self.flush()
        self._protect(f"{directory}/{self._stored(directory, name)}")
        return files

    def write_step(
        self,
        step: int,
        ops: Sequence[OpRecord],
        tensors: Sequence[FiledTensor],
        files: Sequence[str | None],
        counted: Mapping[SkipReason, int],
    ) -> None:
        """Queue the statistics of each operator, and add the step to the index in one transaction."""
        if self._is_elsewhere() or not (ops or self._indexes):
            return
        if ops and not self.plan.step_level:  # all of them have one home
            index = self._index(self._home(ops[0]))
            batch = index.batch_of(ops, tensors)
            room = self.sink.room()
            if room is not None and not index.write_batch(step, batch, files, (), counted, room):
                self.sink.refused_steps.add(step)
                return
            if self.plan.saves_statistics:
                self._write_batch_statistics(batch)
            if room is None:
                index.write_batch(step, batch, files, (), counted)
            return
        for home in {self._home(op): None for op in ops}:
            self._index(home)
        if self.plan.saves_statistics:
            self._write_statistics(tensors)
        homes = {self._home(op) for op in ops} or set(list(self._indexes)[-1:])
        for number, home in enumerate(sorted(homes)):
            kept = [op for op in ops if self._home(op) == home]
            held = [place for place, tensor in enumerate(tensors) if self._home(tensor.op) == home]
            index = self._index(home)
            batch = index.batch_of(kept, [tensors[place] for place in held])
            of_held, of_first = [files[place] for place in held], counted if number == 0 else {}
            if not index.write_batch(step, batch, of_held, (), of_first, self.sink.room()):
                self.sink.refused_steps.add(step)

    def write_graph(self, graph: Graph) -> None:
        """Do nothing: a device's dump has no graph. The graph of an offline model is written by the code that loads the model."""

    @property
    def metadata(self) -> Path | None:
        """The directory of the index; None before anything was written. With a directory for each step, that of the last step."""
        homes = list(self._indexes)
        return self.root / homes[-1] / METADATA if homes else None

    def adopt(self, file: Path) -> None:
        """Count a file in the dump that other code has written."""
        root, found = Path(os.path.realpath(self.root)), Path(os.path.realpath(file))
        if found.is_relative_to(root):
            self.sink.adopt(found.relative_to(root).as_posix())

    @property
    def index_bytes(self) -> int:
        """Bytes that this run has added to its indexes, which the sink counts only at the end."""
        return 0 if self._closed else sum(index.bytes_added for index in self._indexes.values())

    def write_degradation(self, degradation: Degradation) -> None:
        """Add to each index what is left out from a step on."""
        if self._is_elsewhere():
            return
        self._degraded.append(degradation)
        for index in self._indexes.values():
            index.write_degradation(degradation)

    def flush(self) -> None:
        """Wait until everything queued is on disk."""
        self.sink.flush()

    def close(self, totals: Mapping[str, int] | None) -> None:
        """Wait until every file is written, then add the totals to the index. May be called twice.

        A run without totals was abandoned, and is not marked as ended.
        """
        if self._closed or self._is_elsewhere():
            return
        self._closed = True
        self.sink.close()
        if totals is None:
            return
        whole = {home: index for home, index in self._indexes.items() if not self.sink.failed and not index.failed}
        for home, index in whole.items():
            index.end_run(totals)
            self.sink.adopt(f"{home}/{METADATA}/{INDEX_NAME}")
        for home, index in whole.items():
            index.end_run({**totals, "files": self.sink.files_written, "bytes": self.sink.bytes_written})
            self.sink.adopt(f"{home}/{METADATA}/{INDEX_NAME}")  # two more rows may have taken one more page

    def _write(
        self, directory: str, name: str, file: DumpFile, op: OpRecord, tensors: Sequence[TensorRecord]
    ) -> list[str | None]:
        stored = self._write_file(directory, name, file)
        # Every directory of an operator is its home, or below it.
        relative = f"{directory}/{stored}"[len(self._home(op)) + 1 :]
        return [
            None if place is None or record.payload is None else f"{relative}#{place[0]}:{place[1]}"
            for place, record in zip(places(tensors), tensors, strict=True)
        ]

    def _write_file(self, directory: str, name: str, file: DumpFile) -> str:
        stored = self._stored(directory, name)
        if self._is_elsewhere():
            return stored
        if stored != name:
            self._append(f"{directory}/{MAPPING_NAME}", f"{stored},{name}\n")
        self.sink.write_parts(f"{directory}/{stored}", list(encode_dump_file(file)))
        return stored

    def _protect(self, relative: str) -> None:
        if self.sink.exists(relative):
            os.chmod(self.root / relative, _EXCEPTION_MODE)

    def _write_batch_statistics(self, batch: Batch) -> None:
        """`_write_statistics` for the tensors of a batch. A batch that repeats the last one takes a fraction of the time."""
        last, self._last = self._last, form_of(batch) if self._is_classic else None
        if self._last is None or self._last != last:
            self._repeated = None
        elif self._repeated is None:
            self._repeated = repeated_tables(batch, self._name_before_time)
        if self._repeated is None:
            self._write_statistics(batch.tensors)
            return
        repeated, times = self._repeated, batch.timestamps
        directories = {place: self._directory(batch.ops[place]) for place in set(repeated.neighbours)}
        tables = zip(repeated.owners, repeated.neighbours, repeated.names, repeated.texts(batch), strict=True)
        self.sink.write_small(
            [(self._path(directories[place], f"{name}{times[owner]}.csv"), text) for owner, place, name, text in tables]
        )

    def _write_statistics(self, tensors: Sequence[FiledTensor]) -> None:
        by_operator: dict[int, list[FiledTensor]] = {}
        for tensor in tensors:
            if not tensor.op.skip:
                by_operator.setdefault(id(tensor.op), []).append(tensor)
        tables = []
        of_model: tuple[object, ...] = ()
        categories = self.plan.statistic_category
        for group in by_operator.values():
            if not any(tensor.data_size for tensor in group):
                continue
            op = group[0].op
            if of_model != (op.net_name, op.graph_id, op.step):  # neighbours usually have the same one
                of_model = (op.net_name, op.graph_id, op.step)
                directory = self._directory(op)
            path = self._path(directory, f"{self._name_in_full(op)}.csv")
            tables.append((path, encode_operator_csv(group, categories)))
        self.sink.write_small(tables)

    def _path(self, directory: str, name: str) -> str:
        """The path of a file of that name; a name that is too long is added to mapping.csv."""
        stored = self._stored(directory, name)
        if stored != name:
            self._append(f"{directory}/{MAPPING_NAME}", f"{stored},{name}\n")
        return f"{directory}/{stored}"

    def _name(self, op: OpRecord) -> DumpName:
        if self._is_api_call(op):
            api = api_name(op.kernel)
            op_type, op_name = f"{api}_{next(self._calls)}_L2", api
        else:
            op_type, op_name = sanitise(op.op_type), sanitise(op.op_name)
        stream_id = op.stream_id if self.plan.stream_in_names else None
        return DumpName(op_type, op_name, op.task_id, stream_id, op.timestamp)

    def _name_in_full(self, op: OpRecord) -> str:
        """`_name` as text."""
        before = self._name_before_time(op)
        return str(self._name(op)) if before is None else f"{before}{op.timestamp}"

    def _name_before_time(self, op: OpRecord) -> str | None:
        """The part before the time stamp, the same in every step; None for a call, which has a number of its own."""
        if self._is_api_call(op):
            return None
        stream_id = op.stream_id if self.plan.stream_in_names else None
        return _name_before_time(op.op_type, op.op_name, op.task_id, stream_id)

    def _is_api_call(self, op: OpRecord) -> bool:
        """Whether it is a dispatched operator of an eager framework outside of every model: `aten::add.Tensor`."""
        return self.plan.files_api_calls and not op.net_name and "::" in op.kernel

    def _home(self, op: OpRecord) -> str:
        """The directory of the device with the index."""
        if self.plan.mode.failures_only:
            return f"{_EXCEPTIONS}/{self._device_id}"
        above = f"{op.step}/" if self.plan.step_level else ""
        if self._time is None:
            self._claim(above)
        return f"{above}{self.time}/{self._device_id}"

    def _claim(self, above: str) -> None:
        """Claim a {time} for this run by creating its directory, because another run may be about to begin."""
        if self._is_elsewhere():
            return
        self.sink.make_directory("")
        self._time = claimed_time(
            self.root,
            self._device_id,
            self._started,
            lambda text: self.sink.make_directory(f"{above}{text}/{self._device_id}"),
        )

    def _directory(self, op: OpRecord) -> str:
        home = self._home(op)
        if not op.net_name:
            return home
        return f"{home}/{sanitise(op.net_name)}/{graph_word(op.graph_id)}/{op.step}"

    def _stored(self, directory: str, name: str) -> str:
        if len(name) <= _LONGEST_NAME // 4 or len(os.fsencode(name)) <= _LONGEST_NAME:
            return name
        return hashed_name(f"{self.root}/{directory}/{name}")

    def _begin(self, op: OpRecord) -> None:
        """The index exists before the first file: if a run is cut off, it shows that opdump wrote it, and which steps were
        finished.
        """
        if not self._is_elsewhere():
            self._index(self._home(op))

    def _index(self, home: str) -> IndexWriter:
        index = self._indexes.get(home)
        if index is None:
            metadata = self.root / home / METADATA
            self.sink.make_directory(f"{home}/{METADATA}")
            index = self._indexes[home] = IndexWriter(metadata, self._run)
            for degradation in self._degraded:
                index.write_degradation(degradation)
        return index

    def _append(self, relative: str, line: str) -> None:
        self.sink.append(relative, line.encode("utf-8", "backslashreplace"))

    def _is_elsewhere(self) -> bool:
        return os.getpid() != self._process


@lru_cache(maxsize=8192)
def _name_before_time(op_type: str, op_name: str, task_id: int, stream_id: int | None) -> str:
    """`Conv2D.conv1.1.5.`"""
    return str(DumpName(sanitise(op_type), sanitise(op_name), task_id, stream_id, 0)).removesuffix("0")


def _earlier_dumps(root: Path) -> list[Path]:
    """What earlier runs left there, {step_id} or not, and the directories beside their times; other entries do not belong to a
    dump.
    """
    with suppress(OSError):
        return [root / name for name in os.listdir(root) if name.isdecimal() or name == _EXCEPTIONS.partition("/")[0]]
    return []
