"""A writer that is opened when there is something to write. Until then, the rank of the process may be unknown, and it may need no writer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from opdump.checks.overflow import OverflowStatus
from opdump.degradation import Degradation
from opdump.graph import Graph
from opdump.layouts.base import RankWriter
from opdump.plan import DumpPlan
from opdump.records import FiledTensor, OpRecord, SkipReason, TensorRecord
from opdump.sink import DirectorySink


class DeferredWriter(RankWriter):
    """A placeholder for the writer that `open_it` returns."""

    def __init__(self, plan: DumpPlan, open_it: Callable[[], RankWriter]) -> None:
        self._has_history = plan.layout_facts.files == "tensors"
        self._open_it = open_it
        self._opened: RankWriter | None = None
        self._early: list[Callable[[RankWriter], object]] = []
        """Calls that wait until the writer is opened for another reason."""
        self._process = os.getpid()
        self.sink = DirectorySink(plan.path, lazy=True)

    @property
    def opened(self) -> RankWriter:
        """The writer. It is opened at the first access."""
        if self._opened is None:
            opened = self._open_it()
            opened.sink.room = self.sink.room
            self._opened, self.sink = opened, opened.sink
            early, self._early = self._early, []
            for call in early:
                call(opened)
        return self._opened

    @property
    def is_open(self) -> bool:
        return self._opened is not None

    def write_payload(self, record: TensorRecord) -> str:
        return self.opened.write_payload(record)

    def write_operator(self, op: OpRecord, tensors: Sequence[TensorRecord]) -> Sequence[str | None]:
        return self.opened.write_operator(op, tensors)

    def write_exception(self, op: OpRecord, tensors: Sequence[TensorRecord], message: str) -> Sequence[str | None]:
        return self.opened.write_exception(op, tensors, message)

    def write_overflow(self, op: OpRecord, status: OverflowStatus) -> None:
        self.opened.write_overflow(op, status)

    def write_constant(self, data_id: int, record: TensorRecord) -> None:
        self._when_open(lambda writer: writer.write_constant(data_id, record))

    def write_kernel_args(self, op: OpRecord) -> None:
        self._when_open(lambda writer: writer.write_kernel_args(op))

    def write_step(
        self,
        step: int,
        ops: Sequence[OpRecord],
        tensors: Sequence[FiledTensor],
        files: Sequence[str | None],
        counted: Mapping[SkipReason, int],
    ) -> None:
        self.opened.write_step(step, ops, tensors, files, counted)

    def write_graph(self, graph: Graph) -> None:
        self.opened.write_graph(graph)

    def write_graph_files(self, graph: Graph, files: Mapping[str, bytes]) -> None:
        self._when_open(lambda writer: writer.write_graph_files(graph, files))

    def graphs_ran(self, step: int, graph_ids: Iterable[int]) -> None:
        if self._has_history:  # no other layout keeps it, and opening one would create a dump of nothing
            self.opened.graphs_ran(step, graph_ids)

    def write_degradation(self, degradation: Degradation) -> None:
        self._when_open(lambda writer: writer.write_degradation(degradation))

    @property
    def index_bytes(self) -> int:
        return 0 if self._opened is None else self._opened.index_bytes

    @property
    def metadata(self) -> Path | None:
        return None if self._opened is None else self._opened.metadata

    def adopt(self, file: Path) -> None:
        if self._opened is not None:
            self._opened.adopt(file)

    def flush(self) -> None:
        if self._opened is not None:
            self._opened.flush()

    def close(self, totals: Mapping[str, int] | None) -> None:
        if self._opened is not None and os.getpid() == self._process:
            self._opened.close(totals)

    def _when_open(self, call: Callable[[RankWriter], object]) -> None:
        if self._opened is None:
            self._early.append(call)
        else:
            call(self._opened)
