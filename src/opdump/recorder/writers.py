"""The wrapper that reports the failures of a layout's writer, and the growing graphs of a capture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from opdump.graph import Graph, GraphBuilder
from opdump.layouts.base import RankWriter
from opdump.records import OpRecord

# A wrapper for the writer of a layout that reports failures to the recorder, so that a full disk need not end the program.

_WRITING: Final = (
    "write_payload",
    "write_operator",
    "write_exception",
    "write_overflow",
    "write_constant",
    "write_kernel_args",
    "write_step",
    "write_graph",
    "write_graph_files",
    "graphs_ran",
    "write_degradation",
    "flush",
)


class ErrorPolicyWriter(RankWriter):
    """Passes each exception of the writing methods of `writer` to `failed`, which may raise it again. Otherwise the method returns an empty result.

    An interrupt (Ctrl-C) passes through.
    """

    def __init__(self, writer: RankWriter, failed: Callable[[Exception], None]) -> None:
        for name in _WRITING:
            setattr(self, name, _around(getattr(writer, name), "" if name == "write_payload" else None, failed))


def _around(method: Callable[..., Any], instead: object, failed: Callable[[Exception], None]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        try:
            return method(*args)
        except Exception as error:  # noqa: BLE001  the recorder reports every kind of error
            failed(error)
            return instead

    return call


# The growing graphs of a capture, and the numbers of their constants.


class GrowingGraphs:
    """Graphs under construction, by graph ID."""

    def __init__(self, writer: RankWriter) -> None:
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
        self._writer.write_graph_files(graph, files)

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
