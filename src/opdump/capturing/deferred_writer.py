"""A writer that is opened when there is something to write. Until then, the rank of the process may be unknown, and it may need no writer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from opdump.checks.overflow import OverflowStatus
from opdump.degradation import Degradation
from opdump.graph import Graph
from opdump.layouts.base import RankWriter
from opdump.plan import DumpPlan
from opdump.recorder.writers import (
    SupportsConstants,
    SupportsDegradations,
    SupportsExceptions,
    SupportsFlush,
    SupportsGraphFiles,
    SupportsHistory,
    SupportsIndexSize,
    SupportsKernelArgs,
    SupportsMetadata,
    SupportsOverflows,
)
from opdump.records import FiledTensor, OpRecord, SkipReason, TensorRecord
from opdump.sink import DirectorySink


class DeferredWriter:
    """A placeholder for the writer that `open_it` returns."""

    def __init__(self, plan: DumpPlan, open_it: Callable[[], RankWriter]) -> None:
        self._open_it = open_it
        self._opened: Any = None
        self._degraded: list[Degradation] = []
        """Degradations that occurred before the writer was opened."""
        self._process = os.getpid()
        self._none_yet = DirectorySink(plan.path, lazy=True)

    @property
    def opened(self) -> Any:
        """The writer. It is opened at the first access."""
        if self._opened is None:
            self._opened = self._open_it()
            self._opened.sink.room = self._none_yet.room
            early, self._degraded = self._degraded, []
            for degradation in early:
                self.write_degradation(degradation)
            self._begun()
        return self._opened

    @property
    def is_open(self) -> bool:
        return self._opened is not None

    @property
    def sink(self) -> DirectorySink:
        sink: DirectorySink = self._none_yet if self._opened is None else self._opened.sink
        return sink

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

    @property
    def index_bytes(self) -> int:
        return self._opened.index_bytes if isinstance(self._opened, SupportsIndexSize) else 0

    def write_degradation(self, degradation: Degradation) -> None:
        if self._opened is None:
            self._degraded.append(degradation)
        elif isinstance(self._opened, SupportsDegradations):
            self._opened.write_degradation(degradation)

    def flush(self) -> None:
        if isinstance(self._opened, SupportsFlush):
            self._opened.flush()

    def close(self, totals: Mapping[str, int] | None) -> None:
        if self._opened is not None and os.getpid() == self._process:
            self._opened.close(totals)

    def _begun(self) -> None:
        """Called after the writer was opened."""


class LateTensorFiles(DeferredWriter):
    """Placeholder for a layout that writes tensor by tensor."""

    def __init__(self, plan: DumpPlan, open_it: Callable[[], RankWriter]) -> None:
        super().__init__(plan, open_it)
        self._early: list[tuple[type, Callable[[Any], object]]] = []
        """Calls that wait until the writer is opened for another reason, with the protocol that each needs."""

    def write_payload(self, record: TensorRecord) -> str:
        file: str = self.opened.write_payload(record)
        return file

    def write_constant(self, data_id: int, record: TensorRecord) -> str:
        self._when_open(SupportsConstants, lambda writer: writer.write_constant(data_id, record))
        return ""

    def write_graph_files(self, graph: Graph, files: Mapping[str, bytes]) -> None:
        def write(writer: Any) -> None:
            if isinstance(writer, SupportsGraphFiles):
                writer.write_graph_files(graph, files)
            else:
                writer.write_graph(graph)

        self._when_open(object, write)

    def write_kernel_args(self, op: OpRecord) -> None:
        self._when_open(SupportsKernelArgs, lambda writer: writer.write_kernel_args(op))

    def graphs_ran(self, step: int, graph_ids: Iterable[int]) -> None:
        if isinstance(self.opened, SupportsHistory):
            self.opened.graphs_ran(step, graph_ids)

    def _when_open(self, ability: type, call: Callable[[Any], object]) -> None:
        if self.is_open:
            self._where_able(ability, call)
        else:
            self._early.append((ability, call))

    def _where_able(self, ability: type, call: Callable[[Any], object]) -> None:
        if isinstance(self.opened, ability):
            call(self.opened)

    def _begun(self) -> None:
        early, self._early = self._early, []
        for ability, call in early:
            self._where_able(ability, call)


class LateOperatorFiles(DeferredWriter):
    """Placeholder for a layout with one file per operator."""

    @property
    def metadata(self) -> Path | None:
        return self._opened.metadata if isinstance(self._opened, SupportsMetadata) else None

    def adopt(self, file: Path) -> None:
        if isinstance(self._opened, SupportsMetadata):
            self._opened.adopt(file)

    def write_operator(self, op: OpRecord, tensors: Sequence[TensorRecord]) -> Sequence[str | None]:
        files: Sequence[str | None] = self.opened.write_operator(op, tensors)
        return files

    def write_overflow(self, op: OpRecord, status: OverflowStatus) -> None:
        if isinstance(self.opened, SupportsOverflows):
            self.opened.write_overflow(op, status)

    def write_exception(self, op: OpRecord, tensors: Sequence[TensorRecord], message: str) -> Sequence[str | None]:
        if isinstance(self.opened, SupportsExceptions):
            return self.opened.write_exception(op, tensors, message)
        return self.write_operator(op, tensors)


def deferred_writer(plan: DumpPlan, open_it: Callable[[], RankWriter]) -> DeferredWriter:
    """Return a placeholder for a writer in the layout of the plan."""
    kind = LateOperatorFiles if plan.layout_facts.files == "operators" else LateTensorFiles
    return kind(plan, open_it)
