"""Finds the true names behind file names, where another tool wrote the dump and left no index.

`Default_network-WithLossCell__backbone-LeNet_fc1-Dense_MatMul-op0` may be `Default/network-WithLossCell/_backbone-LeNet/...`
or something else: the execution order and the graph know. They are written when a graph is compiled and may number an
operator otherwise than its files do (`-op1` for `-op0`), so a scope is also looked up without the number, and operators of one
scope and type are matched in their order. A name that nothing settles stays as it is in the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from opdump.graph import Graph, GraphInput, GraphNode
from opdump.layouts.mindspore_sync.names import PARAMETER, sanitise

_TUPLE: Final = "MakeTuple"
_HANDING_ON: Final = frozenset({"Load", "Depend", _TUPLE})
"""Operators of MindSpore's graphs that hand on what they are given, and run nothing: a tuple each of its inputs, the others the first."""
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
        self._in_scope: dict[str, list[str]] = {}
        for node in nodes:
            self._in_scope.setdefault(_split(node.op_name)[0], []).append(node.op_name)

    def true_name(self, op_type: str, name: str) -> str:
        """The full name of the operator that files call `name`; `name` where that is not settled."""
        if op_type == PARAMETER:
            return self._parameters.get(name) or name
        found = self._by_full.get(name) or self._by_base.get(name)
        if found:
            return found
        scope, number = _split(name)
        true_scope = self._by_scope.get(scope) if number else None
        return true_scope + number if true_scope else name

    def nodes(self, true_names: Iterable[str]) -> dict[str, GraphNode]:
        """The operators of the graph behind the names of all operators that have files, by these names.

        Where the graph numbers those of one scope otherwise, the first of them that has no file of its name is the first name that
        the graph does not have, and so on; but not where there are more names than operators.
        """
        names = dict.fromkeys(true_names)
        found = {name: self._nodes[name] for name in names if name in self._nodes}
        unknown: dict[str, list[str]] = {}
        for name in names:
            if name not in found:
                unknown.setdefault(_split(name)[0], []).append(name)
        for scope, of_files in unknown.items():
            left = [name for name in self._in_scope.get(scope, ()) if name not in found]
            if len(of_files) <= len(left):
                pairs = zip(sorted(of_files, key=_number), sorted(left, key=_number), strict=False)
                found |= {name: self._nodes[other] for name, other in pairs}
        return found

    def node(self, true_name: str) -> GraphNode | None:
        """The operator of the graph, also where the graph numbers the only operator of its scope otherwise."""
        node = self._nodes.get(true_name)
        if node is None:
            alone = self._in_scope.get(_split(true_name)[0], ())
            node = self._nodes[alone[0]] if len(alone) == 1 else None
        return node

    def source(self, node: GraphNode, slot: int) -> GraphInput | None:
        """What the graph says of an input of an operator, behind the operators that only hand it on; None where it says nothing."""
        for _ in range(len(self._nodes)):
            if slot >= len(node.inputs):
                return None
            given = node.inputs[slot]
            name, _, output = given.source.rpartition(":")
            maker = self._nodes.get(name)
            if maker is None or maker.op_type not in _HANDING_ON or maker.runs_kernel or not maker.inputs:
                return given
            node, slot = maker, int(output) if maker.op_type == _TUPLE and output.isdecimal() else 0
        return None


def _number(name: str) -> int:
    return int(_split(name)[1][len("-op") :] or 0)


def _split(name: str) -> tuple[str, str]:
    match = _NUMBERED.fullmatch(name)
    return (match["scope"], match["number"]) if match else (name, "")


def _index(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Keys to their one value; the empty string where a key has several."""
    index: dict[str, str] = {}
    for key, value in pairs:
        index[key] = value if index.get(key, value) == value else ""
    return index
