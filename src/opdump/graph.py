"""The graph of a run: its operators and their inputs.

An eager framework has no graph before it runs, so one is built from the operators as they appear. A `GraphBuilder` only grows, and each `build()`
returns a frozen `Graph`, from which `.ir`, `.pb` and the execution order are written.
    builder = GraphBuilder(graph_id=0)
    builder.add_parameter(GraphValue("fc.weight", "float32", (10, 16)))
    builder.add(GraphNode(op_name="Default/fc-Linear/addmm-op0", op_type="addmm", ...))
    graph = builder.build()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from opdump.records import Frame, Phase

PARAMETER_PREFIX = "Parameter."
CONSTANT_PREFIX = "data-"
EARLIER_PREFIX = "data-of-earlier-step/"
"""Before the output of an operator of an earlier step, in the source of a tensor that is read after that step."""
PYNATIVE: Final = -1
"""The `graph_id` of operators that MindSpore ran one by one, outside of any graph. They have a directory of their own."""
_PYNATIVE_WORD: Final = "pynative"
_MOST_DIGITS: Final = 18
_NO_ATTRIBUTES: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class GraphInput:
    """One input of an operator.

    `source` is its producer: `{op_name}:{slot}`, `Parameter.{name}`, `data-{id}`, or `data-of-earlier-step/{op_name}:{slot}`; empty if unknown (a batch that the data loader produced).
    `dtype` is in lower case, as in `TensorRecord.dtype`; a dimension of -1 is unknown.
    """

    source: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()


class GraphOutput(NamedTuple):
    """Element type (lower case, empty if unknown) and shape of one output of an operator."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """One operator of the graph.

    `op_name` is the full name, unique within the graph. `stack` has lines of the user's program, innermost first.
    `attributes` are JSON values. A pure view is in the graph with `runs_kernel=False`: it launches nothing, has no data, and no place in the
    execution order.
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
    """A value that no operator of the graph produces: a parameter (`fc.weight`) or a constant (`data-0`).

    `value` is the JSON value of a constant that is not a tensor, if the graph file has it.
    """

    name: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    value: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Operators in the order of their first execution, and the values that enter from outside.

    `by_mindspore`: the graph was read from a file of MindSpore, and its operators may have different numbers at run time (`numbered_as_run`).
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
        """Return the operator with that full name. Raises KeyError if there is none."""
        for node in self.nodes:
            if node.op_name == op_name:
                return node
        raise KeyError(op_name)


def shown_source(source: str) -> str:
    """Return a source as a reader sees it: the output of an earlier step as `Default/mean-op5:0 of an earlier step`, others as they are."""
    return f"{source.removeprefix(EARLIER_PREFIX)} of an earlier step" if source.startswith(EARLIER_PREFIX) else source


def graph_word(graph_id: int) -> str:
    """Return a graph as it appears in names of directories and files: its number, or `pynative`."""
    return _PYNATIVE_WORD if graph_id == PYNATIVE else str(graph_id)


def graph_of_word(word: str) -> int | None:
    """Return the graph ID for a word in the name of a directory or file, or None for any other word."""
    if word == _PYNATIVE_WORD:
        return PYNATIVE
    return int(word) if word.isascii() and word.isdigit() and len(word) <= _MOST_DIGITS else None


class GraphBuilder:
    """Collects operators, parameters and constants as they appear. Each stays as it was first added.

    An operator has the same name in every step: adding it again changes nothing and costs one look-up.
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
        """Return the number of operators, including views."""
        return len(self._nodes)

    def __iter__(self) -> Iterator[GraphNode]:
        return iter(self._nodes.values())

    @property
    def size(self) -> int:
        """Number of items added. It grows with each addition, so an unchanged size means an unchanged graph."""
        return len(self._nodes) + len(self._parameters) + len(self._constants)

    def add(self, node: GraphNode) -> bool:
        """Add an operator. Return False if one with that name exists."""
        if node.op_name in self._nodes:
            return False
        self._nodes[node.op_name] = node
        return True

    def add_with_values(self, node: GraphNode) -> bool:
        """Add an operator, and the parameters and constants that are sources of its inputs. Return False if the operator exists."""
        for each in node.inputs:
            if each.source.startswith(PARAMETER_PREFIX):
                self.add_parameter(GraphValue(each.source.removeprefix(PARAMETER_PREFIX), each.dtype, each.shape))
            elif ":" not in each.source and each.source.startswith(CONSTANT_PREFIX):
                self.add_constant(GraphValue(each.source, each.dtype, each.shape))
        return self.add(node)

    def add_parameter(self, value: GraphValue) -> bool:
        """Add a parameter (its name without `Parameter.`). Return False if one with that name exists."""
        return self._parameters.setdefault(value.name, value) is value

    def add_constant(self, value: GraphValue) -> bool:
        """Add a constant (`data-{id}`). Return False if one with that name exists."""
        return self._constants.setdefault(value.name, value) is value

    def build(self) -> Graph:
        """Return the graph as known so far."""
        return Graph(
            graph_id=self.graph_id,
            root_name=self.root_name,
            nodes=tuple(self._nodes.values()),
            parameters=tuple(self._parameters.values()),
            constants=tuple(self._constants.values()),
        )
