"""Writes a dump like Ascend devices: one file for each operator.

    {dump_path}/{time}/{device_id}/                                    single operators
    {dump_path}/{time}/{device_id}/{model_name}/{model_id}/{data_index}/   a model's
        {op_type}.{op_name}.{task_id}.{stream_id}.{timestamp}          all its tensors, or .csv with their statistics
        {api}_{number}_L2.{api}.{task_id}.{stream_id}.{timestamp}      a kernel of a single operator: its inputs; its outputs
        Opdebug.Node_OpDebug.{task_id}.{stream_id}.{timestamp}         how an operator overflowed
        mapping.csv                                                    long names
    {dump_path}/extra-info/data-dump/{device_id}/                      the operator that failed

and, hidden beside them in `{device_id}/.dump_metadata/`, the index: true names, order, stacks, skipped operators with reasons.
Nothing is created before there is data to write: no overflow, no directory. docs/device-dumps.md#names lists the names.

MindSpore's asynchronous dump:

    {path}/{time}/{device_id}/{model_name}/{model_id}/{iteration}/       file_format
        MatMul.Default_fc_MatMul-op0.65535.65535.1732082705016774                                bin
        MatMul.Default_fc_MatMul-op0.65535.65535.1732082705016774.input.0.DefaultFormat.npy      npy
        Opdebug.Node_OpDebug.65535.65535.1732082705016774[.output.0.json]                        overflow mode
        statistic.csv  mapping.csv
    {path}/{step}/{time}/{device_id}/...                                 the form of ACL: a level of steps on top,
        Default_fc_MatMul-op0.MatMul.65535.65535.1732082705016774        and what runs operator by operator lies here, name first
    {path}/acl_dump_{device_id}.json                                     what MindSpore hands to ACL

Collectives belong to the model in every form. There are no parameters, constants and graphs. An unknown task and stream are
65535. See docs/async-dump.md#the-files.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from opdump.checks.overflow import OverflowStatus
from opdump.degradation import Degradation
from opdump.dump_file import DumpFile
from opdump.dump_file.dump_file import encode_dump_file
from opdump.dump_file.names import MAPPING_NAME, UNKNOWN_ID, DumpName, ExceptionName
from opdump.dump_file.opdebug import opdebug_json
from opdump.graph import Graph, graph_word
from opdump.index.batch import Batch, IndexTemplate
from opdump.index.opening import INDEX_NAME
from opdump.index.runs import METADATA
from opdump.index.writer import IndexWriter, RunFacts
from opdump.layouts.ascend.operator_files import (
    RepeatedTables,
    encode_operator_csv,
    is_classic,
    is_filed,
    operator_file,
    overflow_file_of,
    overflow_of,
    places,
    repeated_tables,
)
from opdump.layouts.base import RankWriter
from opdump.layouts.mindspore_sync.files import sanitise
from opdump.layouts.mindspore_sync.statistic_csv import StatisticFiles, form_of
from opdump.op_types import is_dispatched, rows_of
from opdump.plan import DumpPlan
from opdump.records import FiledTensor, OpRecord, SkipReason, TensorRecord
from opdump.sink import DirectorySink
from opdump.sink.open_directories import prepare

_FILE_MODE = 0o600
_EXCEPTION_MODE = 0o400
_LONGEST_NAME = 255
_EXCEPTIONS = "extra-info/data-dump"


class AscendWriter(RankWriter):
    """Writes the records of one rank. A step is a `data_index`; the model is `net_name` and `graph_id`, none for a single
    operator.

    Raises DumpPathError at the first call after a file could not be written. In a process forked from the one that created the
    writer, every call does nothing.
    """

    def __init__(self, plan: DumpPlan, run: RunFacts, *, started: float | None = None) -> None:
        self.plan = plan
        self.root = Path(plan.path)
        prepare(*_earlier_dumps(self.root))
        self.sink = DirectorySink(self.root, capacity=plan.queue_bytes, file_mode=_FILE_MODE, lazy=True)
        self._started = time.time() if started is None else started
        self._time: str | None = None
        self._device_id = run.rank_id
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
        self._last: tuple[IndexTemplate, Sequence[int]] | None = None
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
        parts = self._by_home(ops, tensors, files)
        indexes = {home: self._index(home) for home in parts}
        for home, index in sorted(indexes.items()):
            batch = index.batch_of(*parts[home][:2])
            room = self.sink.room()
            if room is not None and not index.write_batch(step, batch, parts[home][2], (), counted, room):
                self.sink.refused_steps.add(step)
            elif self.plan.saves_statistics:
                self._write_batch_statistics(batch)
            if room is None:
                index.write_batch(step, batch, parts[home][2], (), counted)
            counted = {}  # they are counted once, in the first index

    def _by_home(
        self, ops: Sequence[OpRecord], tensors: Sequence[FiledTensor], files: Sequence[str | None]
    ) -> Mapping[str, tuple[Sequence[OpRecord], Sequence[FiledTensor], Sequence[str | None]]]:
        if ops and not self.plan.step_level:  # all of them have one home
            return {self._home(ops[0]): (ops, tensors, files)}
        parts = {}
        for home in dict.fromkeys(map(self._home, ops)) or [*self._indexes][-1:]:
            here = [self._home(tensor.op) == home for tensor in tensors]
            of_home = list(itertools.compress(tensors, here)), list(itertools.compress(files, here))
            parts[home] = ([op for op in ops if self._home(op) == home], *of_home)
        return parts

    def write_graph(self, graph: Graph) -> None:
        """Do nothing: a device's dump has no graph. The graph of an offline model is written by the code that loads the model."""

    @property
    def metadata(self) -> Path | None:
        """The directory of the index; None before anything was written. If each step has its own directory, the index of the last step."""
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
            self._write_statistics(batch.table.tensors)
            return
        repeated, times = self._repeated, batch.table.timestamps
        directories = {place: self._directory(batch.table.ops[place]) for place in set(repeated.neighbours)}
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
        return self.plan.files_api_calls and not op.net_name and is_dispatched(op.kernel)

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


# MindSpore's asynchronous dump.

_COLLECTIVES = frozenset({"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "AlltoAll"})
_COLLECTIVE_NAMESPACES = ("c10d::", "_c10d_functional::")
_MOST_OPEN = 2


class AsyncWriter(AscendWriter):
    """Writes the records of one device, operator by operator. A step is an iteration; the model is the net and its graph."""

    def __init__(self, plan: DumpPlan, run: RunFacts, *, started: float | None = None) -> None:
        super().__init__(plan, run, started=started)
        self._statistics = StatisticFiles(
            plan, self.sink, directory_of=self._directory, written_as=lambda op: (_with_ids(op), op.op_name)
        )
        if plan.step_level:
            self._write_acl_json(f"{self.root}")

    def write_operator(self, op: OpRecord, tensors: Sequence[TensorRecord]) -> Sequence[str | None]:
        """Queue the file of an operator, or one for each of its tensors; returns the position of each tensor, relative to the
        index.
        """
        self._begin(op)
        directory, name = self._directory(op), self._dump_name(op)
        if self.plan.file_format == "npy":
            return [self._write_npy(directory, name, record) for record in tensors]
        if not any(record.data_size for record in tensors if is_filed(record)):
            return [None] * len(tensors)
        return self._write(directory, str(name), operator_file(op, tensors), op, tensors)

    def write_overflow(self, op: OpRecord, status: OverflowStatus) -> None:
        """Queue the overflow file of an operator, beside its dump: a dump file, or JSON if tensors are npy."""
        told = _with_ids(op)
        # Its task differs from the operator's, whose number is in the payload.
        name = str(DumpName("Opdebug", "Node_OpDebug", UNKNOWN_ID, told.stream_id, op.timestamp))
        if self.plan.file_format == "npy":
            self._put(self._directory(op), f"{name}.output.0.json", [opdebug_json(overflow_of(told, status)).encode()])
        else:
            self._write_file(self._directory(op), name, overflow_file_of(told, status))

    def _write_npy(self, directory: str, name: DumpName, record: TensorRecord) -> str | None:
        if record.payload is None:
            return None
        text = f"{name}.{record.io}.{record.slot}.{sanitise(record.format)}.npy"
        stored = self._mapped(directory, text)
        if not self._is_elsewhere():
            self.sink.write_array(f"{directory}/{stored}", record.payload.to_host())
        return f"{directory}/{stored}"[len(self._home(record.op)) + 1 :]

    def _put(self, directory: str, name: str, parts: Sequence[bytes]) -> None:
        if not self._is_elsewhere():
            self.sink.write_parts(f"{directory}/{self._mapped(directory, name)}", parts)

    def _mapped(self, directory: str, name: str) -> str:
        """`name` or, if it is too long for a file, digits with its suffix, listed in mapping.csv."""
        stored = self._stored(directory, name)
        if stored == name:
            return name
        stored = f"{stored}.{name.rpartition('.')[2]}"
        if not self._is_elsewhere():
            self._append(f"{directory}/{MAPPING_NAME}", f"{stored},{name}\n")
        return stored

    def _write_batch_statistics(self, batch: Batch) -> None:
        self._statistics.write_batch(batch)

    def _write_statistics(self, tensors: Sequence[FiledTensor]) -> None:
        self._statistics.write(tensors)

    def _dump_name(self, op: OpRecord) -> DumpName:
        told = _with_ids(op)
        return DumpName(
            op_type=sanitise(op.op_type),
            op_name=sanitise(op.op_name),
            task_id=told.task_id,
            stream_id=told.stream_id,
            timestamp=op.timestamp,
            name_first=self._is_on_its_own(op),
        )

    def _directory(self, op: OpRecord) -> str:
        home = self._home(op)
        if self._is_on_its_own(op):
            return home
        return f"{home}/{sanitise(op.net_name or self.plan.net_name)}/{graph_word(op.graph_id)}/{op.step}"

    def _is_on_its_own(self, op: OpRecord) -> bool:
        return self.plan.kernel_by_kernel and not _communicates(op)

    def _index(self, home: str) -> IndexWriter:
        if home not in self._indexes:
            if self.plan.step_level:
                self._write_acl_json(str(self.root / home.partition("/")[0]))
            # In the form of ACL, each step has an index; the indexes of past steps are rarely written again.
            for past in list(self._indexes)[: -_MOST_OPEN + 1]:
                self._indexes[past].forget()
        return super()._index(home)

    def _write_acl_json(self, dump_path: str) -> None:
        """The file that MindSpore leaves for ACL: the settings of the step, in ACL's own keys."""
        if self.plan.mode.failures_only:
            dump: dict[str, object] = {"dump_scene": "lite_exception"}
        elif self.plan.mode.detects_overflow:
            dump = {"dump_debug": "on", "dump_path": dump_path}
        else:
            names = [pattern.text for pattern in self.plan.kernels if pattern.kind == "name"]
            both = self.plan.inputs and self.plan.outputs
            dump = {
                "dump_list": [{"layer": names}] if names else [],
                "dump_mode": "all" if both else "input" if self.plan.inputs else "output",
                "dump_op_switch": "on",
                "dump_path": dump_path,
            }
        text = json.dumps({"dump": dump}, separators=(",", ":"), sort_keys=True)
        self.sink.write_bytes(f"acl_dump_{self._device_id}.json", text.encode())


def _with_ids(op: OpRecord) -> OpRecord:
    """The operator with task and stream numbers as in files: 0 and 0 mean unknown."""
    return op if op.task_id or op.stream_id else replace(op, task_id=UNKNOWN_ID, stream_id=UNKNOWN_ID)


def _communicates(op: OpRecord) -> bool:
    return op.kernel.startswith(_COLLECTIVE_NAMESPACES) or any(
        row.concept in _COLLECTIVES for row in rows_of(op.op_type)
    )


# Assigns each run a {time} directory of its own, even if another run begins in the same second.

_PATIENCE_SECONDS: Final = 2.0


def unused_time(root: Path, device_id: int, started: float) -> str:
    """The {time} of a run: a later second if another run of the same second has written files of the device."""
    while True:
        text = time.strftime("%Y%m%d%H%M%S", time.localtime(started))
        if not (root / text / str(device_id)).exists() and not any(root.glob(f"[0-9]*/{text}/{device_id}")):
            return text
        started += 1


def claimed_time(root: Path, device_id: int, started: float, claim: Callable[[str], None]) -> str:
    """`unused_time`, with the directory that `claim` creates for it, while no other run searches for its own. `root` must exist."""
    with _by_itself(root):
        text = unused_time(root, device_id, started)
        claim(text)
    return text


@contextmanager
def _by_itself(root: Path) -> Iterator[None]:
    """One process at a time. If the file system has no locks, or another process holds the lock and hangs, there is no exclusion."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        until = time.monotonic() + _PATIENCE_SECONDS
        while not _is_locked(descriptor) and time.monotonic() < until:
            time.sleep(0.002)
        yield
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    """Whether there is nothing more to wait for."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # the file system has no locks
        return True
    return True


# Names that a device generates: for calls of its single-operator interface, and as replacements of names that are too long.
#
# See docs/device-dumps.md#names.

_MASK: Final = 2**64 - 1
_MULTIPLIER: Final = 0xC6A4A7935BD1E995
_SEED: Final = 0xC70F6907


def api_name(kernel: str) -> str:
    """`aclnn` and the operator's name in camel case; `Inplace` if it ends with an underscore.

    >>> api_name("aten::add.Tensor"), api_name("aten::mul_.Tensor"), api_name("aten::native_layer_norm_backward")
    ('aclnnAdd', 'aclnnInplaceMul', 'aclnnNativeLayerNormBackward')
    """
    name = kernel.rpartition("::")[2].partition(".")[0]
    in_place = "Inplace" if name.endswith("_") and not name.endswith("__") else ""
    words = [re.sub(r"[^A-Za-z0-9]", "", word) for word in name.split("_")]
    return f"aclnn{in_place}{''.join(word[:1].upper() + word[1:] for word in words)}"


def hashed_name(path: str) -> str:
    """The name under which a device writes a file with too long a path: the 64-bit MurmurHash of the path as digits.

    >>> hashed_name("abc")
    '3663726644998027833'
    """
    data = os.fsencode(path)
    whole = len(data) & ~7
    value = _SEED ^ (len(data) * _MULTIPLIER & _MASK)
    for start in range(0, whole, 8):
        block = int.from_bytes(data[start : start + 8], "little")
        value = (value ^ (_mixed(block * _MULTIPLIER & _MASK) * _MULTIPLIER & _MASK)) * _MULTIPLIER & _MASK
    if len(data) > whole:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    return str(_mixed(_mixed(value) * _MULTIPLIER & _MASK))


def _mixed(value: int) -> int:
    return value ^ (value >> 47)
