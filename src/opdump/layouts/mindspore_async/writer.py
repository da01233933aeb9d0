"""Writes MindSpore's asynchronous dump.

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

import json
from collections.abc import Sequence
from dataclasses import replace

from opdump.checks.overflow import OverflowStatus
from opdump.dump_file.names import MAPPING_NAME, UNKNOWN_ID, DumpName
from opdump.dump_file.opdebug import opdebug_json
from opdump.graph import graph_word
from opdump.index.batch import Batch
from opdump.index.writer import IndexWriter, RunFacts
from opdump.layouts.ascend.operator_files import is_filed, operator_file
from opdump.layouts.ascend.overflow_files import overflow_file_of, overflow_of
from opdump.layouts.ascend.writer import AscendWriter
from opdump.layouts.mindspore_sync.names import sanitise
from opdump.layouts.mindspore_sync.statistic_files import StatisticFiles
from opdump.op_types import rows_of
from opdump.plan import DumpPlan
from opdump.records import FiledTensor, OpRecord, TensorRecord

_COLLECTIVES = frozenset({"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "AlltoAll"})
_COLLECTIVE_NAMESPACES = ("c10d::", "_c10d_functional::")
_MOST_OPEN = 2


class AsyncWriter(AscendWriter):
    """Writes the records of one device, operator by operator. A step is an iteration; the model is the net and its graph."""

    def __init__(self, plan: DumpPlan, run: RunFacts, *, device_id: int = 0, started: float | None = None) -> None:
        super().__init__(plan, run, device_id=device_id, started=started)
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
            # One for each step in the form of ACL: those of past steps are rarely written again.
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
