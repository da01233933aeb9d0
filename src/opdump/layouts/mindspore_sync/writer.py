"""Writes a rank of a dump in MindSpore's synchronous layout.

    {path}/rank_{rank}/
        .dump_metadata/           data_dump.json  config.json  index.sqlite
        {net_name}/{graph}/{iteration}/   *.npy  statistic.csv  {op_type}.{op_name}.json  mapping.csv
        {net_name}/{graph}/constants/     Parameter.data-{id}...npy
        graphs/                   ms_output_trace_code_graph_{graph}.ir and .pb
        execution_order/          ms_execution_order_graph_{graph}.csv  ms_global_execution_order_graph_{graph}.csv

A second run into the same directory removes nothing: its files have other time stamps, rows and lines are appended, and the index
separates the runs.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from opdump.degradation import Degradation
from opdump.errors import DumpPathError
from opdump.graph import Graph, graph_word
from opdump.index.batch import Batch
from opdump.index.opening import INDEX_NAME
from opdump.index.runs import CONFIG_NAME, ENVIRONMENT_NAME, METADATA, config_text, environment_text
from opdump.index.writer import NOTHING_COUNTED, Constant, IndexWriter, RunFacts
from opdump.layouts.base import RankWriter
from opdump.layouts.graph_files.mindspore import encode_execution_history, encode_execution_order, encode_ir, encode_pb
from opdump.layouts.mindspore_sync.files import (
    CONSTANTS,
    LONGEST_NAME,
    MAPPING_NAME,
    PARAMETER,
    dtype_token,
    op_name_in_files,
    sanitise,
)
from opdump.layouts.mindspore_sync.statistic_csv import StatisticFiles
from opdump.plan import DumpPlan, SyncLayoutName
from opdump.records import FiledTensor, HostPayload, OpRecord, SkipReason, TensorRecord
from opdump.sink import DirectorySink, make_directory
from opdump.sink.open_directories import prepare


class SyncWriter(RankWriter):
    """Writes the records of one rank. Only `write_payload` may be called by several threads at once.

    Raises DumpPathError immediately if `plan.path` cannot be written, and later at the first call after a failure. In a process
    forked from the one that created the writer, every call does nothing.
    """

    def __init__(self, plan: DumpPlan, run: RunFacts) -> None:
        self.plan = plan
        self._layout: SyncLayoutName = "mindspore-2.10" if plan.layout == "mindspore-2.10" else "mindspore-2.3"
        self.root = Path(plan.path) / f"rank_{run.rank_id}"
        self._process = os.getpid()
        prepare(self.root)
        make_directory(self.root)
        if not os.access(self.root, os.W_OK | os.X_OK):
            raise DumpPathError(f"{self.root}: is not writable for this user: dump into a directory that is")
        self.sink = self._opened_sink()
        self.sink.make_directory(METADATA)
        self._index = IndexWriter(self.root / METADATA, run)
        self.run_id = self._index.run_id
        self.sink.write_bytes(f"{METADATA}/{CONFIG_NAME}", config_text(plan).encode("utf-8", "backslashreplace"))
        environment = environment_text(
            device_target=run.device_target,
            framework=run.framework,
            framework_version=run.framework_version,
            opdump_version=run.opdump_version,
            layout=self.layout_name,
        )
        self.sink.write_bytes(f"{METADATA}/{ENVIRONMENT_NAME}", environment.encode())
        self._statistics = StatisticFiles(
            plan, self.sink, directory_of=self._step_directory, written_as=self._in_statistics
        )
        is_newer = self._layout == "mindspore-2.10"
        self._full_names_in_csv = is_newer
        # A step has thousands of tensors with these names, and the next step the same.
        self._sanitised = cache(sanitise)
        self._op_name = cache(partial(op_name_in_files, naming=self._layout))
        self._token = cache(dtype_token if is_newer else _no_token)
        self._constants: list[Constant] = []
        self._history: set[tuple[int, int]] = set()
        self._described: set[int] = set()
        """Graphs that MindSpore described itself. Their history is the one it wrote, which does not have all executions."""
        self._closed = False

    def write_payload(self, record: TensorRecord) -> str:
        """Queue the npy file of a tensor; returns its path relative to the rank's directory."""
        op = record.op
        return self._write_npy(self._step_directory(op), self._file_name(record), record)

    def write_constant(self, data_id: int, record: TensorRecord) -> str:
        """Queue the npy file of a constant; returns its path. The index lists it separately from the tensors of the steps.

        Constants have no row in statistic.csv: that file describes its own directory.
        """
        reader = record.op
        op = OpRecord(
            op_type=PARAMETER,
            op_name=f"data-{data_id}",
            timestamp=reader.timestamp,
            step=reader.step,
            net_name=reader.net_name,
            graph_id=reader.graph_id,
            rank_id=reader.rank_id,
            device_id=reader.device_id,
        )
        filed = replace(record, op=op, io="output", slot=0, format="DefaultFormat")
        file = self._write_npy(f"{self._graph_directory(op)}/{CONSTANTS}", self._file_name(filed), filed)
        listed = replace(filed, payload=None)  # which the sink owns now
        self._constants.append(Constant(data_id, listed, file))
        return file

    def write_kernel_args(self, op: OpRecord) -> None:
        """Write the non-tensor arguments of an operator: a JSON object of strings, as save_kernel_args requires."""
        if self._is_elsewhere():
            return
        text = json.dumps({str(key): str(value) for key, value in op.arguments.items()}, indent=4, sort_keys=True)
        directory = self._step_directory(op)
        name = self._mapped(directory, f"{self._sanitised(op.op_type)}.{self._op_name(op.op_type, op.op_name)}.json")
        self.sink.write_bytes(f"{directory}/{name}", text.encode())

    def write_step(
        self,
        step: int,
        ops: Sequence[OpRecord],
        tensors: Sequence[FiledTensor],
        files: Sequence[str | None],
        counted: Mapping[SkipReason, int] = NOTHING_COUNTED,
    ) -> None:
        """Write statistic.csv of each graph, the execution history, and one transaction of the index.

        A second call for the same step adds to the first.
        """
        if self._is_elsewhere():
            return
        batch = self._index.batch_of(ops, tensors)
        room = self.sink.room()
        if room is not None and not self._write_index(step, batch, files, counted, room):
            return  # a limit leaves no room for it, and no table lists it
        self._write_statistics(batch)
        # A step in which nothing of a graph was selected still counts as executed by the graph.
        self._write_history(step, batch.template.graph_ids - self._described)
        if room is None:
            self._write_index(step, batch, files, counted, None)

    def _write_index(
        self,
        step: int,
        batch: Batch,
        files: Sequence[str | None],
        counted: Mapping[SkipReason, int],
        room: int | None,
    ) -> bool:
        # Taken only when they are written: another thread may add a constant in the meantime.
        constants = self._constants[:]
        is_filed = self._index.write_batch(step, batch, files, constants, counted, room)
        if is_filed:
            del self._constants[: len(constants)]
        else:
            self.sink.refused_steps.add(step)
        return is_filed

    def write_graph(self, graph: Graph) -> None:
        """Write a graph: .ir, .pb and the execution order; replaces an earlier state of the same graph."""
        if self._is_elsewhere():
            return
        stem = f"graphs/ms_output_trace_code_graph_{graph_word(graph.graph_id)}"
        self.sink.write_bytes(f"{stem}.ir", encode_ir(graph, layout=self._layout))
        self.sink.write_bytes(f"{stem}.pb", encode_pb(graph))
        order = f"execution_order/ms_execution_order_graph_{graph_word(graph.graph_id)}.csv"
        self.sink.write_bytes(order, encode_execution_order(graph))

    def write_graph_files(self, graph: Graph, files: Mapping[str, bytes]) -> None:
        """Write MindSpore's own files of a graph, unchanged."""
        self._described.add(graph.graph_id)
        for relative, content in files.items():
            if not self._is_elsewhere():
                self.sink.write_bytes(relative, content)

    @property
    def index_bytes(self) -> int:
        """Bytes that this run has added to the index, which the sink counts only at the end."""
        return 0 if self._closed else self._index.bytes_added

    def write_degradation(self, degradation: Degradation) -> None:
        """Add to the index what is left out from a step on."""
        if not self._is_elsewhere():
            self._index.write_degradation(degradation)

    def flush(self) -> None:
        """Wait until everything queued is on disk."""
        self.sink.flush()

    def close(self, totals: Mapping[str, int] | None) -> None:
        """Wait until every file is written, then add the totals to the index. May be called twice.

        A run whose files did not all reach the disk is not marked as ended: DumpPathError has the reason. Nor is a run without
        totals, which was abandoned.
        """
        if self._closed or self._is_elsewhere():
            return
        self._closed = True
        try:
            if self._constants:
                nothing = self._index.batch_of((), ())
                self._index.write_batch(self._constants[0].record.op.step, nothing, (), self._constants)
        finally:
            self.sink.close()
        if totals is None or self.sink.failed or self._index.failed:
            return  # the caller got the error then
        self._index.end_run(totals)
        self.sink.adopt(f"{METADATA}/{INDEX_NAME}")
        self._index.end_run({**totals, "files": self.sink.files_written, "bytes": self.sink.bytes_written})
        self.sink.adopt(f"{METADATA}/{INDEX_NAME}")  # two more rows may have taken one more page

    def abandon(self) -> None:
        """Remove a run that wrote nothing: its row in the index, and the directory if nothing else has used it."""
        if self._closed or self._is_elsewhere():
            return
        self._closed = True
        self.sink.close()
        if self._index.forget_run() == 0 and {path.name for path in self.root.iterdir()} == {METADATA}:
            shutil.rmtree(self.root, ignore_errors=True)

    def _in_statistics(self, op: OpRecord) -> tuple[OpRecord, str]:
        return op, op.op_name if self._full_names_in_csv else self._op_name(op.op_type, op.op_name)

    @property
    def layout_name(self) -> str:
        """The layout name that the dump records."""
        return self._layout

    def _opened_sink(self) -> DirectorySink:
        return DirectorySink(self.root, capacity=self.plan.queue_bytes)

    def _write_statistics(self, batch: Batch) -> None:
        if self.plan.saves_statistics:
            self._statistics.write_batch(batch)

    def graphs_ran(self, step: int, graph_ids: Iterable[int]) -> None:
        """Note that these graphs ran in a step that is dumped, even if nothing of it is recorded."""
        if not self._is_elsewhere():
            self._write_history(step, graph_ids)

    def _write_history(self, step: int, graph_ids: Iterable[int]) -> None:
        for graph_id in sorted(graph_ids):
            if (graph_id, step) not in self._history:
                self._history.add((graph_id, step))
                history = f"execution_order/ms_global_execution_order_graph_{graph_word(graph_id)}.csv"
                self.sink.append(history, encode_execution_history([step]))

    def _write_npy(self, directory: str, name: str, record: TensorRecord) -> str:
        if record.payload is None:
            raise ValueError(f"{record.name}: has no payload to write")
        if self._is_elsewhere():
            return f"{directory}/{name}"
        path = f"{directory}/{self._mapped(directory, name)}"
        payload = record.payload
        if not (isinstance(payload, HostPayload) and payload.npy and self.sink.take_over(path, payload.npy)):
            self.sink.write_array(path, payload.to_host())
        return path

    def _mapped(self, directory: str, name: str) -> str:
        """`name` or, if it is too long for a file, a random name listed in mapping.csv of the directory."""
        if len(name) <= LONGEST_NAME // 4 or len(os.fsencode(name)) <= LONGEST_NAME:
            return name
        suffix = name.rpartition(".")[2]
        while True:
            # os.urandom: the random generators of the program must not be advanced.
            short = f"{int.from_bytes(os.urandom(4), 'little') >> 1}.{suffix}"
            if not self.sink.exists(f"{directory}/{short}"):
                break
        self.sink.append(f"{directory}/{MAPPING_NAME}", f"{short},{name}\n".encode("utf-8", "backslashreplace"))
        return short

    def _file_name(self, record: TensorRecord) -> str:
        op = record.op
        token = self._token(record.dtype)
        return (
            f"{self._sanitised(op.op_type)}.{self._op_name(op.op_type, op.op_name)}.{op.task_id}.{op.stream_id}.{op.timestamp}.{record.io}.{record.slot}."
            f"{self._sanitised(record.format)}{'.' if token else ''}{token}.npy"
        )

    def _step_directory(self, op: OpRecord) -> str:
        return f"{self._graph_directory(op)}/{op.step}"

    def _graph_directory(self, op: OpRecord) -> str:
        return f"{self._sanitised(op.net_name or self.plan.net_name)}/{graph_word(op.graph_id)}"

    def _is_elsewhere(self) -> bool:
        return os.getpid() != self._process


def _no_token(_dtype: str) -> str:
    """Before 2.7 file names had no element type."""
    return ""
