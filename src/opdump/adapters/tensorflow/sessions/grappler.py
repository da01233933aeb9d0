"""The runtime's rewriting of a graph (grappler), and what it does to the values.

`a / sqrt(b)` becomes `a * rsqrt(b)`, constants of a product are gathered, products are fused with what follows; what is fetched stays as
it is. Two rewritten graphs compute the same bits where the digests of what was asked for are the same: an operator's digest is made
of what it does and of the digests of what it reads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.python.grappler import tf_optimizer

from opdump.adapters.tensorflow.operator_kinds import is_assignment, is_stateful, is_update
from opdump.adapters.tensorflow.sessions.fusions import ATTRIBUTES, FUSED, fused_with
from opdump.adapters.tensorflow.sessions.rehearsal import Rehearsal
from opdump.adapters.tensorflow.sessions.subgraph import Subgraph

_DEVICE: Final = "/job:localhost/replica:0/task:0/device:CPU:0"
_READER: Final = "opdump_reader/"
_SAME: Final = frozenset({"Identity", "StopGradient", "PreventGradient", "Snapshot"})
"""Give what they read; they come and go."""
_ALSO_KNOWN_AS: Final = {"BiasAdd": "Add", "AddV2": "Add"}
"""A bias is a sum; some are written, and fused, as one."""
_BY_NAME: Final = frozenset({"Merge", "RefMerge", "Placeholder", "VariableV2", "Variable"})
_LEAST_NODES: Final = 4
"""Smaller graphs are not rewritten."""


class Rewriting:
    """The runtime's rewriting of what a signature computes."""

    def __init__(self, subgraph: Subgraph, config: Any | None) -> None:
        self.config = tf.compat.v1.ConfigProto()
        if config is not None:
            self.config.CopyFrom(config)
        self.placeholders = {name: _placeholder(name) for name in subgraph.fed}
        """By tensor, the names of what stands for those that are fed."""
        graph = graph_pb2.GraphDef()
        if subgraph.operators:
            whole = subgraph.operators[0].operation.graph
            rewriting = self.config.graph_options.rewrite_options
            if rewriting.min_graph_nodes == 0 and len(whole.get_operations()) >= _LEAST_NODES:
                rewriting.min_graph_nodes = -1  # the runtime counts all that the graph has
            graph.library.CopyFrom(_library(whole))
            graph.versions.CopyFrom(whole.graph_def_versions)
        known = {op.name for op in subgraph.operators}
        for op in subgraph.operators:
            node = graph.node.add()
            node.CopyFrom(op.operation.node_def)
            node.device = node.device or _DEVICE
            for position, name in enumerate(node.input):
                source = _tensor_name(name)
                if source in self.placeholders:
                    node.input[position] = self.placeholders[source]
            kept = [name for name in node.input if not name.startswith("^") or name[1:] in known]
            del node.input[:]
            node.input.extend(kept)
        for name in sorted(self.placeholders):
            self._add_placeholder(graph, name, subgraph)
        self._graph = graph
        self._rehearsal = Rehearsal(graph, subgraph.operators[0].operation.graph if subgraph.operators else None)
        self._is_off = self.config.graph_options.rewrite_options.disable_meta_optimizer

    def _add_placeholder(self, graph: Any, name: str, subgraph: Subgraph) -> None:
        tensors = (slot.tensor for op in subgraph.operators for slot in op.inputs if slot.tensor.name == name)
        tensor = next(tensors, None)
        if tensor is None:
            return
        node = graph.node.add()
        node.name, node.op, node.device = self.placeholders[name], "Placeholder", _DEVICE
        node.attr["dtype"].type = tensor.dtype.base_dtype.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())

    def of(self, names: Iterable[str], read: Sequence[Any] = (), alike: frozenset[str] = frozenset()) -> Rewritten:
        """The rewritten graph where these operations and tensors are asked for, and the tensors of `read` read by an operator each."""
        meta = meta_graph_pb2.MetaGraphDef()
        meta.graph_def.CopyFrom(self._graph)
        asked = list(dict.fromkeys(names))
        for tensor in read:
            reader = meta.graph_def.node.add(op="PyFunc", name=f"{_READER}{tensor.op.name}_{tensor.value_index}")
            reader.input.append(tensor.name)
            reader.device = _DEVICE
            reader.attr["token"].s = reader.name.encode()
            reader.attr["Tin"].list.type.append(tensor.dtype.base_dtype.as_datatype_enum)
            reader.attr["Tout"].list.SetInParent()
            asked.append(reader.name)
        meta.collection_def["train_op"].node_list.value.extend(asked)
        if self._is_off:
            return Rewritten(self._graph, asked, alike)
        with self._rehearsal.trial():
            rewritten = tf_optimizer.OptimizeGraph(self.config, meta, verbose=False)
        return Rewritten(rewritten, asked, alike)


def _library(graph: Any) -> Any:
    return graph.as_graph_def(from_version=graph.version).library


def _tensor_name(name: str) -> str:
    return name if ":" in name or name.startswith("^") else f"{name}:0"


def _placeholder(tensor: str) -> str:
    name, _, slot = tensor.partition(":")
    return f"{name}/fed_{slot}"


class Rewritten:
    """A rewritten graph, each of its nodes with a digest of all that its value depends on."""

    def __init__(self, graph: Any, asked: Sequence[str], alike: frozenset[str]) -> None:
        self.graph = graph
        self._alike = alike
        self.nodes = {node.name: node for node in graph.node if not node.name.startswith(_READER)}
        self.stateful = {node.name for node in graph.node if is_stateful(node.op)} & self.nodes.keys()
        self._digests: dict[str, str] = {}
        self._asked = asked
        for name in self.nodes:
            self._find_digest(name)

    def digested(self, alike: frozenset[str]) -> Rewritten:
        """The same where these fused operators give the bits of what they are made of."""
        return self if alike == self._alike else Rewritten(self.graph, self._asked, alike)

    def differences(self, other: Rewritten, radius: int) -> set[str]:
        """The operators of `other` to blame for what it computes otherwise, with those `radius` steps around; of what was asked for
        here, of states and of loops. A `radius` of -1 blames, where there are such, those alone that are not here.
        """
        blamed: set[str] = set()
        roots = {_node_name(name) for name in self._asked} | self.stateful
        roots |= {name for name, node in self.nodes.items() if node.op in ("NextIteration", "Switch")}
        # Updates of reference variables are not told as changing a state.
        roots |= {name for name, node in self.nodes.items() if is_update(node.op) or is_assignment(node.op)}
        met: set[tuple[str, str]] = set()
        readers: dict[tuple[str, str], set[str]] = {}
        waiting = [(name, name) for name in sorted(roots)]
        while waiting:
            pair = waiting.pop()
            if pair in met:
                continue
            met.add(pair)
            mine, theirs = self.nodes.get(pair[0]), other.nodes.get(pair[1])
            if mine is None or theirs is None:
                if mine is not None or theirs is not None:
                    blamed.update(pair)
                continue
            is_root = pair[0] == pair[1] and pair[0] in roots
            if self._digests[pair[0]] == other._digests[pair[1]] and not is_root:
                continue
            own, others = self._inputs(mine), other._inputs(theirs)
            if _facts(mine) != _facts(theirs) or len(own) != len(others):
                if self._digests[pair[0]] != other._digests[pair[1]]:
                    absent = other._behind(pair[1], self.nodes) if radius < 0 else set()
                    nearby = other._around(pair[1], radius) | self._around(pair[0], radius) | readers.get(pair, set())
                    # What is fused with the operator that reads it is not to be fetched; that operator can be.
                    blamed |= absent or nearby
                continue
            for first, second in zip(own, others, strict=True):
                if self._digest_of_input(first) == other._digest_of_input(second):
                    continue
                if first.partition(":")[2] != second.partition(":")[2]:
                    blamed |= {_node_name(first), _node_name(second)}
                below = (_node_name(first), _node_name(second))
                readers.setdefault(below, set()).update(pair)
                waiting.append(below)
        for _ in range(radius):  # a rewriting also looks at who reads
            blamed |= {
                name
                for name, node in other.nodes.items()
                if any(_node_name(each) in blamed for each in node.input) and name not in other.stateful
            }
        return blamed

    def _around(self, name: str, radius: int) -> set[str]:
        """An operator, what it reads, and what these read, `radius` more times."""
        found, edge = {name}, [name]
        for _ in range(max(radius, 0) + 1):
            edge = [
                _node_name(source) for each in edge if each in self.nodes for source in self._inputs(self.nodes[each])
            ]
            found.update(edge)
        return found

    def _behind(self, name: str, others: Collection[str]) -> set[str]:
        """What an operator reads that is not among `others`, and what that reads."""
        found: set[str] = set()
        waiting = [name]
        while waiting:
            for source in self._inputs(self.nodes[waiting.pop()]):
                before = _node_name(source)
                if before in self.nodes and before not in others and before not in found:
                    found.add(before)
                    waiting.append(before)
        return found

    def _inputs(self, node: Any) -> list[str]:
        return [self._origin(name) for name in node.input if not name.startswith("^")]

    def _origin(self, name: str) -> str:
        """Where a tensor comes from, behind operators that give what they read."""
        while True:
            node = self.nodes.get(_node_name(name))
            if node is None or node.op not in _SAME:
                return name
            name = next(each for each in node.input if not each.startswith("^"))

    def _digest_of_input(self, name: str) -> str:
        return f"{self._digests.get(_node_name(name), name)}:{name.partition(':')[2] or 0}"

    def _find_digest(self, name: str) -> None:
        # Without recursion: graphs are deep.
        waiting = [name]
        while waiting:
            node = self.nodes[waiting[-1]]
            if node.name in self._digests:
                waiting.pop()
                continue
            if node.op in _BY_NAME or node.name in self.stateful:
                self._digests[node.name] = f"{node.op} {node.name}"
                continue
            inputs = self._inputs(node)
            missing = [_node_name(each) for each in inputs if _node_name(each) not in self._digests]
            missing = [each for each in missing if each in self.nodes]
            if missing and not set(missing) & set(waiting):
                waiting += missing
                continue
            self._digests[node.name] = self._digest(node, [self._digest_of_input(each) for each in inputs])

    def _digest(self, node: Any, inputs: Sequence[str]) -> str:
        after = fused_with(node) if node.name in self._alike else []
        if after:
            # As the operators were before they were fused.
            value = _hash(FUSED[node.op], *_facts(node, FUSED[node.op])[1:], *inputs[:2])
            rest = list(inputs[2:])
            for op_type in after:
                summand = [rest.pop(0)] if op_type == "BiasAdd" and rest else []
                value = _hash(_ALSO_KNOWN_AS.get(op_type, op_type), f"{value}:0", *summand)
            return value
        if node.op in ("BiasAdd", "Add", "AddV2", "Relu", "Relu6"):
            return _hash(_ALSO_KNOWN_AS.get(node.op, node.op), *inputs)
        return _hash(*_facts(node), *inputs)


def _facts(node: Any, op_type: str = "") -> tuple[str, ...]:
    """What an operator does, but for its inputs."""
    attributes = [
        f"{name}={value.SerializeToString(deterministic=True).hex()}"
        for name, value in sorted(node.attr.items())
        # The rewriting leaves attributes behind that no operator has, without a value.
        if not name.startswith("_") and value.WhichOneof("value") and (not op_type or name in ATTRIBUTES)
    ]
    if node.op in FUSED.values():
        attributes = [each for each in attributes if each.partition("=")[0] in ATTRIBUTES]
    return (op_type or node.op, *attributes)


def _hash(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def _node_name(name: str) -> str:
    return name.lstrip("^").partition(":")[0]
