"""The graph that the runtime executes for a set of fetches: rewritten, fused, with the bodies of functions in it.

The runtime's debugger files it when a callable is made of the fetches, before anything runs. A node has the name of the operator of the program
that it is, or was made in the place of; what came out of a function has the path of its caller (`loop/body/_1/MatMul`); others have names of the
rewriting (`ArithmeticOptimizer/...`). Source: TensorFlow's direct_session.cc, debug_graph_utils.cc, lower_functional_ops.cc.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2
from tensorflow.core.util import event_pb2
from tensorflow.python.framework import op_def_registry

from opdump.adapters.tensorflow.sessions.rehearsal import Rehearsal
from opdump.adapters.tensorflow.xla import type_of

_NO_NODE: Final = "opdump/no node has this name"
"""The debugger files graphs where it watches something."""
_NUMBER: Final = re.compile(r"(?:/branch(\d+))?/_\d+(?=/)", re.ASCII)
"""Stands in the path of what came out of a function."""
_FOLDED: Final = re.compile(
    r"(?:ConstantFolding/)?(.+?)(?:/_\d+__cf__\d+|-(?:folded|matshapes|bcastargs)(?:-(\d+))?)$", re.ASCII
)
"""The constant that an operator, or one of its outputs, was folded into."""
_OWN: Final = frozenset({"_Arg", "_Retval", "_Send", "_Recv", "_HostSend", "_HostRecv"})
"""How the runtime hands tensors in and out, and from device to device."""
_FUSED: Final = "fused_ops"
_PREFIX: Final = re.compile(r"^_(?:MklNative|Mkl|Native)?(?:Fused)?|Ex$")

Key = str
"""A tensor: `{node}:{slot}`."""


class ExecutedGraph:
    """The nodes of all devices, by name."""

    def __init__(self, graphs: Iterable[Any]) -> None:
        graphs = list(graphs)
        self.nodes: dict[str, Any] = {node.name: node for graph in graphs for node in graph.node}
        self._sent = {
            node.attr["tensor_name"].s: node.input[0]
            for node in self.nodes.values()
            if node.op in ("_Send", "_HostSend")
        }

    @cached_property
    def paths(self) -> dict[str, str]:
        """Node -> its name without the numbers of calls, where it has some: what came out of a function."""
        found = {name: _NUMBER.sub(_without_number, name) for name in self.nodes}
        return {name: path for name, path in found.items() if path != name}

    @cached_property
    def folded(self) -> dict[str, dict[int, Any]]:
        """Operator (a node without numbers of calls) -> slot -> the constant that it was folded into, where the rewriting has made a node of its own."""
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

    def inputs(self, node: Any) -> list[Key]:
        """What a node reads; where that came from another device, what was sent there."""
        return [self._sender(key_of(text)) for text in node.input if not text.startswith("^")]

    def _sender(self, key: Key) -> Key:
        received = self.nodes.get(key.rpartition(":")[0])
        if received is not None and received.op in ("_Recv", "_HostRecv"):
            sent = self._sent.get(received.attr["tensor_name"].s)
            return key if sent is None else key_of(sent)
        return key

    def differing(self, other: ExecutedGraph) -> set[str]:
        """The nodes that one of both has, or has otherwise; how results are handed out does not count."""
        mine, others = self._compared, other._compared
        return {name for name in mine.keys() | others.keys() if mine.get(name) != others.get(name)}

    @cached_property
    def _compared(self) -> dict[str, tuple[Any, ...]]:
        found = {}
        for name, node in self.nodes.items():
            if node.op not in _OWN:
                attributes = sorted(
                    (key, value.SerializeToString(deterministic=True)) for key, value in node.attr.items()
                )
                control = sorted(text for text in node.input if text.startswith("^"))
                found[name] = (node.op, tuple(self.inputs(node)), tuple(control), node.device, tuple(attributes))
        return found


def _without_number(found: re.Match[str]) -> str:
    return f"/branch_{found[1]}" if found[1] is not None else ""


def key_of(reference: str) -> Key:
    """The tensor that a node's input names."""
    return reference if re.search(r":\d+$", reference) else f"{reference}:0"


def base_type(node: Any) -> str:
    """The type of a node without what says how it is computed: `MatMul` of `_MklNativeFusedMatMul`."""
    if op_def_registry.get(node.op) is not None and not node.op.startswith("_"):
        return type_of(node)
    return _PREFIX.sub("", node.op)


def fused_types(node: Any) -> list[str]:
    """The operators that were fused into a node behind its own, in order."""
    return [each.decode() for each in node.attr[_FUSED].list.s] if _FUSED in node.attr else []


def is_own_kernel(node: Any) -> bool:
    """Whether a node is of a type of the runtime's own, which computes several operators, or one in another way."""
    return str(node.op).startswith("_")


def is_plumbing(node: Any) -> bool:
    """Whether a node only hands tensors in, out, or to another device."""
    return node.op in _OWN


def output_count(node: Any) -> int:
    """How many tensors a node gives; 1 where nothing says it."""
    op_def = op_def_registry.get(node.op)
    if op_def is None:
        return 1
    count = 0
    for argument in op_def.output_arg:
        if argument.number_attr:
            count += node.attr[argument.number_attr].i
        elif argument.type_list_attr:
            count += len(node.attr[argument.type_list_attr].list.type)
        else:
            count += 1
    return count


def executed_graph(
    session: Any, feeds: Collection[str], fetches: Sequence[str], targets: Sequence[str], place: Path
) -> ExecutedGraph:
    """What the runtime executes for these feeds and fetches (tensors) and targets (operations), of which nothing runs.

    `place` is a directory that does not exist yet. Raises tf.errors.OpError where the runtime refuses them.
    """
    options = config_pb2.CallableOptions()
    options.feed.extend(sorted(feeds))
    options.fetch.extend(fetches)
    options.target.extend(targets)
    watch = options.run_options.debug_options.debug_tensor_watch_opts.add()
    watch.node_name, watch.output_slot = _NO_NODE, 0
    watch.debug_ops.append("DebugIdentity")
    watch.debug_urls.append(f"file://{place}")
    with Rehearsal(session.graph).trial():  # constants are folded, which may call the program's Python
        made = session._make_callable_from_options(options)
    del made
    return ExecutedGraph(_published(place))


def _published(place: Path) -> Iterator[Any]:
    for path in sorted(place.rglob("_tfdbg_graph_*")):
        yield graph_pb2.GraphDef.FromString(event_pb2.Event.FromString(path.read_bytes()).graph_def)
