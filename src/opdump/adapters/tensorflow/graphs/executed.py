"""A graph that the runtime executes: rewritten, fused, with the bodies of functions inlined.

A node has the name of the program's operator that it is or replaces. A node from a function has the path of its caller
(`loop/body/_1/MatMul`); others have names of the rewriting (`ArithmeticOptimizer/...`). Source: TensorFlow's lower_functional_ops.cc,
inline_function_utils.cc, constant_folding.cc, remapper.cc.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Final

from tensorflow.python.framework import op_def_registry

from opdump.adapters.tensorflow.graphs.library import argument_names
from opdump.adapters.tensorflow.nodes import producer
from opdump.adapters.tensorflow.xla import type_of

_NUMBER: Final = re.compile(r"(?:/branch(\d+))?/_\d+(?=/)", re.ASCII)
"""Appears in the path of nodes from a function."""
_FOLDED: Final = re.compile(
    r"(?:ConstantFolding/)?(.+?)(?:/_\d+__cf__\d+|-(?:folded|matshapes|bcastargs)(?:-(\d+))?)$", re.ASCII
)
"""The constant that replaces an operator, or one of its outputs, after folding."""
_PLUMBING: Final = frozenset({"_Arg", "_Retval", "_Send", "_Recv", "_HostSend", "_HostRecv"})
"""The runtime's nodes that pass tensors in and out, and between devices."""
_WAITING: Final = re.compile(r"/_\d+$", re.ASCII)
"""Ends the name of nodes that make one device wait for another."""
_NOT_COMPARED: Final = frozenset({"_XlaHasReferenceVars"})
_FUSED: Final = "fused_ops"
_PREFIX: Final = re.compile(r"^_(?:MklNative|Mkl|Native)?(?:Fused)?|Ex$")

Key = str
"""A tensor: `{node}:{slot}`."""


class ExecutedGraph:
    """The nodes of all devices, by name. Nodes whose names begin with `added` are opdump's, and are not compared."""

    def __init__(self, graphs: Iterable[Any], *, added: str = "") -> None:
        graphs = list(graphs)
        self._added = added
        self._several = len(graphs) > 1
        self.nodes: dict[str, Any] = {node.name: node for graph in graphs for node in graph.node}
        self._sent = {
            node.attr["tensor_name"].s: node.input[0]
            for node in self.nodes.values()
            if node.op in ("_Send", "_HostSend")
        }

    @cached_property
    def paths(self) -> dict[str, str]:
        """Node -> its name without the numbers of calls, for nodes from functions."""
        found = {name: _NUMBER.sub(_without_number, name) for name in self.nodes}
        return {name: path for name, path in found.items() if path != name}

    @cached_property
    def folded(self) -> dict[str, dict[int, Any]]:
        """Operator (a node without numbers of calls) -> slot -> its constant after folding, if the rewriting made a separate node."""
        found: dict[str, dict[int, Any]] = {}
        for name, node in self.nodes.items():
            named = _FOLDED.match(name) if node.op == "Const" else None
            if named is not None:
                found.setdefault(_NUMBER.sub(_without_number, named[1]), {})[int(named[2] or 0)] = node
        return found

    @cached_property
    def readers(self) -> dict[Key, list[str]]:
        """Tensor -> the nodes that read it."""
        found: dict[Key, list[str]] = {}
        for name, node in self.nodes.items():
            for key in self.inputs(node):
                found.setdefault(key, []).append(name)
        return found

    def inputs(self, node: Any) -> Sequence[Key]:
        """The inputs of a node; for an input from another device, the tensor that was sent there."""
        return self._read[node.name]

    @cached_property
    def _read(self) -> dict[str, list[Key]]:
        return {
            name: [self._sender(key_of(text)) for text in node.input if not text.startswith("^")]
            for name, node in self.nodes.items()
        }

    @cached_property
    def before(self) -> dict[str, set[str]]:
        """Node -> the nodes that it reads or waits for."""
        return {name: set(map(producer, node.input)) for name, node in self.nodes.items()}

    def _sender(self, key: Key) -> Key:
        received = self.nodes.get(key.rpartition(":")[0])
        if received is not None and received.op in ("_Recv", "_HostRecv"):
            sent = self._sent.get(received.attr["tensor_name"].s)
            return key if sent is None else key_of(sent)
        return key

    def differing(self, other: ExecutedGraph) -> set[str]:
        """The nodes that differ between the two, or exist in only one of them.

        Nodes that return results or pass tensors between devices do not count, nor do added ones.
        """
        mine, others = self._compared, other._compared
        return {name for name in mine.keys() | others.keys() if mine.get(name) != others.get(name)}

    @cached_property
    def _compared(self) -> dict[str, tuple[Any, ...]]:
        found = {}
        for name, node in self.nodes.items():
            if is_plumbing(node) or self._is_added(name):
                continue
            if self._several and node.op in ("Const", "Identity") and _WAITING.search(name):
                continue
            attributes = sorted(
                (key, value.SerializeToString(deterministic=True))
                for key, value in node.attr.items()
                if key not in _NOT_COMPARED
            )
            inputs = tuple(map(self._behind_added, self.inputs(node)))
            found[name] = (node.op, inputs, self._controls(node), node.device, attributes)
        return found

    def _controls(self, node: Any) -> frozenset[str]:
        """The nodes after which a node runs; none with several devices, which wait for each other."""
        found = [] if self._several else [text[1:] for text in node.input if text.startswith("^")]
        return frozenset(name for name in found if not self._is_added(name) and self.nodes[name].op != "_Arg")

    def _behind_added(self, key: Key) -> Key:
        name = key.rpartition(":")[0]
        while self._is_added(name):
            key = self.inputs(self.nodes[name])[0]
            name = key.rpartition(":")[0]
        return key

    def _is_added(self, name: str) -> bool:
        return bool(self._added) and name.startswith(self._added)


def _without_number(found: re.Match[str]) -> str:
    return f"/branch_{found[1]}" if found[1] is not None else ""


def key_of(reference: str) -> Key:
    """The tensor that a node's input names."""
    _, colon, number = reference.rpartition(":")
    return reference if colon and number.isdecimal() else f"{reference}:0"


def base_type(node: Any) -> str:
    """The type of a node without the part for its implementation: `MatMul` for `_MklNativeFusedMatMul`."""
    if op_def_registry.get(node.op) is not None and not node.op.startswith("_"):
        return type_of(node)
    return _PREFIX.sub("", node.op)


def fused_types(node: Any) -> list[str]:
    """The operators that were fused into a node after its own, in order."""
    return [each.decode() for each in node.attr[_FUSED].list.s] if _FUSED in node.attr else []


def is_own_kernel(node: Any) -> bool:
    """Whether the type of a node is the runtime's own, which computes several operators, or one in another way."""
    return str(node.op).startswith("_")


def is_plumbing(node: Any) -> bool:
    """Whether a node only passes tensors in, out, or to another device."""
    return node.op in _PLUMBING


def output_count(node: Any) -> int:
    """The number of a node's outputs; 1 if unknown."""
    op_def = op_def_registry.get(node.op)
    if op_def is None:
        return 1
    return len(argument_names(op_def.output_arg, op_def, node))
