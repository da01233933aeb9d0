"""Finds the true names for file names in dumps of other tools, which have no index.

`Default_network-WithLossCell__backbone-LeNet_fc1-Dense_MatMul-op0` may be `Default/network-WithLossCell/_backbone-LeNet/...` or
something else; the execution order and the graph decide. They are written when a graph is compiled, before MindSpore assigns the
numbers that files have (`-op1` for `-op0`), so operators are renumbered in the same way. A name that cannot be resolved stays as
it is in the file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from opdump.graph import PARAMETER_PREFIX, Graph, GraphInput, GraphNode
from opdump.layouts.mindspore_sync.names import PARAMETER, sanitise

_TUPLE: Final = "MakeTuple"
_ITEM: Final = "TupleGetItem"
_HANDING_ON: Final = frozenset({"Load", "Depend", _TUPLE, _ITEM})
"""Operators of MindSpore's graphs that pass on their inputs and run nothing: a tuple passes on each of its inputs, an item one of
them, the others the first.
"""
_NUMBERED = re.compile(r"(?P<scope>.*)(?P<number>-op[0-9]+)", re.DOTALL)


class TrueNames:
    """Looks up the names of one graph: of its operators, of its parameters, and of both in its graph file."""

    def __init__(self, full_names: Iterable[str], parameters: Iterable[str], graph: Graph | None) -> None:
        nodes = graph.nodes if graph is not None else ()
        names = dict.fromkeys([*full_names, *(node.op_name for node in nodes)])
        self._by_full = _index((sanitise(name), name) for name in names)
        self._by_base = _index((sanitise(name.rpartition("/")[2]), name) for name in names)
        self._by_scope = _index((sanitise(scope), scope) for name in names if (scope := _split(name)[0]))
        values = (value.name for value in graph.parameters) if graph is not None else ()
        self._parameters = _index((sanitise(name), name) for name in (*parameters, *values))
        self._nodes = {node.op_name: node for node in nodes}
        constants = graph.constants if graph is not None else ()
        self._constants = {constant.name: constant.value for constant in constants if constant.value is not None}

    def true_name(self, op_type: str, name: str) -> str:
        """The full name of the operator with this `name` in files; `name` itself if it cannot be resolved."""
        if op_type == PARAMETER:
            return self._parameters.get(name) or name
        found = self._by_full.get(name) or self._by_base.get(name)
        if found:
            return found
        scope, number = _split(name)
        true_scope = self._by_scope.get(scope) if number else None
        return true_scope + number if true_scope else name

    def node(self, true_name: str) -> GraphNode | None:
        """The operator of that full name in the graph."""
        return self._nodes.get(true_name)

    def constants(self, node: GraphNode) -> dict[str, Any]:
        """The values that the graph contains among the inputs of an operator, by slot."""
        values = {str(slot): self._constants.get(given.source) for slot, given in enumerate(node.inputs)}
        return {slot: value for slot, value in values.items() if value is not None}

    def source(self, node: GraphNode, slot: int) -> GraphInput | None:
        """The source of an operator's input in the graph, with operators that only pass it on skipped; None if unknown.

        The source of an element of a parameter that is a tuple is `Parameter.{name}:{index}`.
        """
        elements: list[int] = []
        """The indices into the tuple and the tuples in it, outermost last."""
        for _ in range(len(self._nodes)):
            if slot >= len(node.inputs):
                return None
            given = node.inputs[slot]
            name, _, output = given.source.rpartition(":")
            maker = self._nodes.get(name)
            if maker is None or maker.op_type not in _HANDING_ON or maker.runs_kernel or not maker.inputs:
                return _element(given, maker, elements)
            node, slot = maker, 0
            if maker.op_type == _ITEM:
                index = self._constants.get(maker.inputs[-1].source)
                if not isinstance(index, int):
                    return None
                elements.append(index)
            elif maker.op_type == _TUPLE:
                slot = elements.pop() if elements else int(output) if output.isdecimal() else 0
                if slot < len(maker.inputs) and _is_argument(maker):
                    return GraphInput(f"{maker.inputs[slot].source}:{slot}")
        return None


def _is_argument(pack: GraphNode) -> bool:
    """Whether a tuple is an argument of a compiled function: the graph has its elements as parameters of one name."""
    name = pack.inputs[0].source
    return (
        len(pack.inputs) > 1 and name.startswith(PARAMETER_PREFIX) and all(each.source == name for each in pack.inputs)
    )


def numbered_as_run(graph: Graph, counts: Counter[str]) -> Graph:
    """The graph with the numbers that its operators have when they run.

    MindSpore renumbers operators after writing the file of a graph: by scope and type, in the order of the file, and continuing
    from one graph of a process to the next. `counts` are the numbers in earlier graphs, by scope and type; those of this one are
    added.
    """
    names: dict[str, str] = {}
    for node in graph.nodes:
        stem = _split(node.op_name)[0]
        if stem:
            names[node.op_name] = f"{stem}-op{counts[stem]}"
            counts[stem] += 1
    return graph if all(name == other for name, other in names.items()) else renamed(graph, names)


def names_throughout(graph: Graph) -> dict[str, str]:
    """Names that differ in their last component, as files of 2.3 need them: one number for each operator, in the order of the
    graph.
    """
    return {node.op_name: f"{_split(node.op_name)[0]}-op{number}" for number, node in enumerate(graph.nodes)}


def renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with other names of its operators, including references to them as makers of inputs."""
    return replace(
        graph,
        nodes=tuple(
            replace(
                node,
                op_name=names.get(node.op_name, node.op_name),
                inputs=tuple(replace(given, source=_renamed(given.source, names)) for given in node.inputs),
            )
            for node in graph.nodes
        ),
    )


def _renamed(source: str, names: Mapping[str, str]) -> str:
    name, colon, slot = source.rpartition(":")
    return f"{names[name]}{colon}{slot}" if name in names else source


def _element(given: GraphInput, maker: GraphNode | None, elements: Sequence[int]) -> GraphInput | None:
    """The element of a tuple that an operator returns, or that a parameter is."""
    if not elements:
        return given
    if len(elements) > 1:
        return None
    (index,) = elements
    if maker is None:
        return GraphInput(f"{given.source}:{index}") if given.source.startswith(PARAMETER_PREFIX) else None
    return GraphInput(
        f"{maker.op_name}:{index}"
    )  # without a shape: files of MindSpore have none for elements of tuples


def _split(name: str) -> tuple[str, str]:
    match = _NUMBERED.fullmatch(name)
    return (match["scope"], match["number"]) if match else (name, "")


def _index(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Keys to their single value; the empty string if a key has several."""
    index: dict[str, str] = {}
    for key, value in pairs:
        index[key] = value if index.get(key, value) == value else ""
    return index
