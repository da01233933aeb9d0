"""A layout's writer that keeps records in memory, for tests of recorders and adapters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from opdump.graph import Graph
from opdump.records import FiledTensor, OpRecord, SkipReason, TensorRecord, record_of


class CollectingWriter:
    """Keeps everything that a recorder passes to a layout.

    `tensors` contains the records of every finished step with their payloads; `ops` the operators, including skipped ones;
    `counted` the numbers of those listed in an earlier step; `constants` the constants by number; `graphs` the latest graph of
    each number.
    """

    def __init__(self) -> None:
        self.ops: list[OpRecord] = []
        self.counted: Counter[SkipReason] = Counter()
        self.tensors: list[TensorRecord] = []
        self.constants: dict[int, TensorRecord] = {}
        self.kernel_args: list[OpRecord] = []
        self.graphs: dict[int, Graph] = {}
        self.steps: list[int] = []
        self._payloads: dict[str, TensorRecord] = {}

    def write_payload(self, record: TensorRecord) -> str:
        name = f"{len(self._payloads)}.{record.name}"
        self._payloads[name] = record
        return name

    def write_constant(self, data_id: int, record: TensorRecord) -> str:
        self.constants[data_id] = record
        return f"constants/{data_id}"

    def write_kernel_args(self, op: OpRecord) -> None:
        self.kernel_args.append(op)

    def write_step(
        self,
        step: int,
        ops: Sequence[OpRecord],
        tensors: Sequence[FiledTensor],
        files: Sequence[str | None],
        counted: Mapping[SkipReason, int],
    ) -> None:
        self.steps.append(step)
        self.counted.update(counted)
        self.ops += ops
        for tensor, file in zip(tensors, files, strict=True):
            payload = None if file is None else self._payloads[file].payload
            self.tensors.append(record_of(tensor, payload))

    def write_graph(self, graph: Graph) -> None:
        self.graphs[graph.graph_id] = graph
