"""The growing graphs of a capture, and the numbers of their constants."""

from __future__ import annotations

from collections.abc import Mapping

from opdump.graph import Graph, GraphBuilder
from opdump.recorder.writers import StepWriter, SupportsGraphFiles
from opdump.records import OpRecord


class GrowingGraphs:
    """Graphs under construction, by graph ID."""

    def __init__(self, writer: StepWriter) -> None:
        self._writer = writer
        self._builders: dict[int, GraphBuilder] = {}
        self._filed_sizes: dict[int, int] = {}
        self._constants: dict[tuple[int, str, int], int] = {}
        """Numbers of constants, by graph, operator and slot that reads it."""

    def of(self, graph_id: int, root_name: str = "") -> GraphBuilder:
        builder = self._builders.get(graph_id)
        if builder is None:
            builder = self._builders[graph_id] = GraphBuilder(graph_id, root_name)
        return builder

    def file(self, graph: Graph, files: Mapping[str, bytes]) -> None:
        """Write a graph that the runtime described itself, as these files if the layout has a place for them."""
        if isinstance(self._writer, SupportsGraphFiles):
            self._writer.write_graph_files(graph, files)
        else:
            self._writer.write_graph(graph)

    def constant_name(self, op: OpRecord, slot: int) -> str:
        """Return the name of the constant that an operator reads in this slot, or an empty string for a new one."""
        known = self._constants.get((op.graph_id, op.op_name, slot))
        return "" if known is None else f"data-{known}"

    def add_constant(self, op: OpRecord, slot: int) -> int:
        number = sum(1 for graph_id, _, _ in self._constants if graph_id == op.graph_id)
        self._constants[op.graph_id, op.op_name, slot] = number
        return number

    def write_grown(self) -> None:
        for graph_id, builder in self._builders.items():
            if self._filed_sizes.get(graph_id) != builder.size:
                self._filed_sizes[graph_id] = builder.size
                self._writer.write_graph(builder.build())
