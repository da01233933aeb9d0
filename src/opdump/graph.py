"""The graph of a run: its operators and what feeds them.

An eager framework has no graph before it runs, so one is built from operators as they appear: a `GraphBuilder` only ever
grows, and each `build()` is a frozen `Graph` that `.ir`, `.pb` and the execution order are written from.

    builder = GraphBuilder(graph_id=0)
    builder.add_parameter(GraphValue("fc.weight", "float32", (10, 16)))
    builder.add(GraphNode(op_name="Default/fc-Linear/addmm-op0", op_type="addmm", ...))
    graph = builder.build()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from opdump.records import Frame, Phase

PARAMETER_PREFIX = "Parameter."
CONSTANT_PREFIX = "data-"
PYNATIVE: Final = -1
"""The `graph_id` of operators that MindSpore ran one by one, in no graph: beside those of its graphs, in a directory of their own."""
_PYNATIVE_WORD: Final = "pynative"
_MOST_DIGITS: Final = 18
_NO_ATTRIBUTES: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class GraphInput:
    """One input of an operator.

    `source` is its producer: `{op_name}:{slot}`, `Parameter.{name}` or `data-{id}`; empty where that is unknown (a batch
    that the data loader made). `dtype` is lower case as in `TensorRecord.dtype`; a dimension of -1 is not known.
    """

    source: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()


class GraphOutput(NamedTuple):
    """Element type (lower case, empty where unknown) and shape of one output of an operator."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """One operator of the graph.

    `op_name` is the true full name and unique within the graph. `stack` is the user's program, innermost line first.
    `attributes` are JSON values. A pure view is in the graph with `runs_kernel=False`: it launches nothing, has no data
    and no place in the execution order.
    """

    op_name: str
    op_type: str
    phase: Phase = "forward"
    inputs: tuple[GraphInput, ...] = ()
    outputs: tuple[GraphOutput, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=lambda: _NO_ATTRIBUTES)
    stack: Sequence[Frame] = ()
    runs_kernel: bool = True


@dataclass(frozen=True, slots=True)
class GraphValue:
    """A value that no operator of the graph makes: a parameter (`fc.weight`) or a constant (`data-0`).

    `value` is the JSON value of a constant that is no tensor, if the graph file has it.
    """

    name: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    value: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Operators in the order of their first execution, with the values that enter from outside.

    `by_mindspore`: the graph is from a file that MindSpore wrote, and its operators may run under other numbers (`numbered_as_run`).
    """

    graph_id: int
    root_name: str = ""
    nodes: tuple[GraphNode, ...] = ()
    parameters: tuple[GraphValue, ...] = ()
    constants: tuple[GraphValue, ...] = ()
    by_mindspore: bool = False

    @property
    def kernels(self) -> tuple[GraphNode, ...]:
        """The operators that launch a kernel, in execution order."""
        return tuple(node for node in self.nodes if node.runs_kernel)

    def node(self, op_name: str) -> GraphNode:
        """The operator of that full name; KeyError where the graph has none."""
        for node in self.nodes:
            if node.op_name == op_name:
                return node
        raise KeyError(op_name)


def graph_word(graph_id: int) -> str:
    """A graph in the names of directories and files: its number, or `pynative`."""
    return _PYNATIVE_WORD if graph_id == PYNATIVE else str(graph_id)


def graph_of_word(word: str) -> int | None:
    """The number of a graph from the names of directories and files; None where it is no such word."""
    if word == _PYNATIVE_WORD:
        return PYNATIVE
    return int(word) if word.isascii() and word.isdigit() and len(word) <= _MOST_DIGITS else None


class GraphBuilder:
    """Collects operators, parameters and constants as they appear; what was added stays as it was first seen.

    An operator runs again in every step under the same name: adding it again changes nothing and costs one look-up.
    """

    __slots__ = ("_constants", "_nodes", "_parameters", "graph_id", "root_name")

    def __init__(self, graph_id: int, root_name: str = "") -> None:
        self.graph_id = graph_id
        self.root_name = root_name or graph_word(graph_id)
        self._nodes: dict[str, GraphNode] = {}
        self._parameters: dict[str, GraphValue] = {}
        self._constants: dict[str, GraphValue] = {}

    def __contains__(self, op_name: object) -> bool:
        return op_name in self._nodes

    def __len__(self) -> int:
        """Number of operators, views included."""
        return len(self._nodes)

    def __iter__(self) -> Iterator[GraphNode]:
        return iter(self._nodes.values())

    @property
    def size(self) -> int:
        """Everything that was added; it grows with each addition, so an unchanged size means an unchanged graph."""
        return len(self._nodes) + len(self._parameters) + len(self._constants)

    def add(self, node: GraphNode) -> bool:
        """Add an operator; False where one of that name is there already."""
        if node.op_name in self._nodes:
            return False
        self._nodes[node.op_name] = node
        return True

    def add_with_values(self, node: GraphNode) -> bool:
        """The same, and the parameters and constants that its inputs name as their sources."""
        for each in node.inputs:
            if each.source.startswith(PARAMETER_PREFIX):
                self.add_parameter(GraphValue(each.source.removeprefix(PARAMETER_PREFIX), each.dtype, each.shape))
            elif ":" not in each.source and each.source.startswith(CONSTANT_PREFIX):
                self.add_constant(GraphValue(each.source, each.dtype, each.shape))
        return self.add(node)

    def add_parameter(self, value: GraphValue) -> bool:
        """Add a parameter (its name without `Parameter.`); False where one of that name is there already."""
        return self._parameters.setdefault(value.name, value) is value

    def add_constant(self, value: GraphValue) -> bool:
        """Add a constant (`data-{id}`); False where one of that name is there already."""
        return self._constants.setdefault(value.name, value) is value

    def build(self) -> Graph:
        """The graph as far as it is known now."""
        return Graph(
            graph_id=self.graph_id,
            root_name=self.root_name,
            nodes=tuple(self._nodes.values()),
            parameters=tuple(self._parameters.values()),
            constants=tuple(self._constants.values()),
        )
