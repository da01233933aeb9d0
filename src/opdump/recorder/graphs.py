"""The graphs of a capture while they grow, and the numbers of the constants in them."""

from __future__ import annotations

from opdump.graph import GraphBuilder
from opdump.recorder.writers import StepWriter
from opdump.records import OpRecord


class GrowingGraphs:
    """Graphs under construction, by number."""

    def __init__(self, writer: StepWriter) -> None:
        self._writer = writer
        self._builders: dict[int, GraphBuilder] = {}
        self._filed_sizes: dict[int, int] = {}
        self._constants: dict[tuple[int, str, int], int] = {}
        """By graph, operator and slot that reads it."""

    def of(self, graph_id: int, root_name: str = "") -> GraphBuilder:
        builder = self._builders.get(graph_id)
        if builder is None:
            builder = self._builders[graph_id] = GraphBuilder(graph_id, root_name)
        return builder

    def constant(self, op: OpRecord, slot: int) -> int | None:
        """The number of the constant that an operator reads there; None for a new one."""
        return self._constants.get((op.graph_id, op.op_name, slot))

    def add_constant(self, op: OpRecord, slot: int) -> int:
        number = sum(1 for graph_id, _, _ in self._constants if graph_id == op.graph_id)
        self._constants[op.graph_id, op.op_name, slot] = number
        return number

    def write_grown(self) -> None:
        for graph_id, builder in self._builders.items():
            if self._filed_sizes.get(graph_id) != builder.size:
                self._filed_sizes[graph_id] = builder.size
                self._writer.write_graph(builder.build())
