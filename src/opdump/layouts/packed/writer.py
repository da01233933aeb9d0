"""Writes a rank of a dump in the packed layout.

    {path}/rank_{rank}/
        .dump_metadata/   data_dump.json  config.json  index.sqlite
        elements/         {run}.pack
        graphs/           ms_output_trace_code_graph_{graph}.ir and .pb
        execution_order/  ms_execution_order_graph_{graph}.csv  ms_global_execution_order_graph_{graph}.csv

Statistics and arguments are only in the index. `opdump unpack` writes the files of other layouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opdump.index.batch import Batch
from opdump.index.writer import NOTHING_COUNTED, RunFacts
from opdump.layouts.mindspore_sync.writer import SyncWriter
from opdump.layouts.packed.elements_file import PackedSink
from opdump.plan import DumpPlan
from opdump.records import FiledTensor, OpRecord, SkipReason, TensorRecord

ELEMENTS = "elements"
SUFFIX = ".pack"


class PackedWriter(SyncWriter):
    """Writes the records of one rank like `SyncWriter`, except that elements go into one file, and tables are not written."""

    sink: PackedSink

    def __init__(self, plan: DumpPlan, run: RunFacts) -> None:
        super().__init__(plan, run)
        self.sink.elements = f"{ELEMENTS}/{self.run_id}{SUFFIX}"

    @property
    def layout_name(self) -> str:
        return "packed"

    def write_kernel_args(self, op: OpRecord) -> None:
        """The arguments are in the index."""

    def write_step(
        self,
        step: int,
        ops: Sequence[OpRecord],
        tensors: Sequence[FiledTensor],
        files: Sequence[str | None],
        counted: Mapping[SkipReason, int] = NOTHING_COUNTED,
    ) -> None:
        """Write the execution history and one transaction of the index, after the elements are on their way to the disk."""
        self.sink.push()
        super().write_step(step, ops, tensors, files, counted)

    def _opened_sink(self) -> PackedSink:
        return PackedSink(self.root, capacity=self.plan.queue_bytes)

    def _write_statistics(self, batch: Batch) -> None:
        pass

    def _write_npy(self, directory: str, name: str, record: TensorRecord) -> str:
        if record.payload is None:
            raise ValueError(f"{record.name}: has no payload to write")
        return self.sink.append_elements(f"{directory}/{name}", record.payload.to_host())
