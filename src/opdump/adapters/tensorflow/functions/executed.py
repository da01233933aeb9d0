"""The graph that the runtime executes for a function: rewritten, fused, with what it runs in it, loops and branches as Switch and Merge.

A node that is an operator of the program has its name, one out of a function that was put into its caller the path of that, with numbers of the
runtime's in it: `while/body/_1/MatMul`. Source: TensorFlow's lower_functional_ops.cc, inline_function_utils.cc.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import tensorflow as tf

from opdump.adapters.tensorflow.functions.library import Library, NodeSlot, outputs_of

Tensor = tuple[str, int]
"""A node, and the slot of its output."""
Control = tuple[tuple[str, ...], Tensor, int]
"""The loops around a branch, what decides about it, and the output of the Switch."""

_NUMBER: Final = re.compile(r"(?:/branch(\d+))?/_\d+(?=/)", re.ASCII)
_VENDOR: Final = re.compile(r"^_Mkl(Native)?")
SWITCHES: Final = frozenset({"Switch", "RefSwitch", "_SwitchN"})
ENTERS: Final = frozenset({"Enter", "RefEnter"})
_MERGES: Final = frozenset({"Merge", "RefMerge"})
_EXITS: Final = frozenset({"Exit", "RefExit"})
NEXT: Final = frozenset({"NextIteration", "RefNextIteration"})
PLUMBING: Final = frozenset({"_Arg", "_Retval", "_Send", "_Recv", "_HostSend", "_HostRecv"})


@dataclass(frozen=True, slots=True)
class Region:
    """Nodes that run equally often: in the same loops (`frame`), in the same branches of them (`controls`)."""

    frame: tuple[str, ...]
    controls: frozenset[Control]


class ExecutedGraph:
    """The nodes by name, what they read, and where they stand."""

    def __init__(self, graph: Any, library: Library) -> None:
        self._library = library
        self.nodes: dict[str, Any] = {}
        self.inputs: dict[str, list[Tensor]] = {}
        self.after: dict[str, list[str]] = {}
        self.outputs: dict[str, tuple[NodeSlot, ...]] = {}
        self.paths: dict[str, str] = {}
        """Node -> its name in the program."""
        self.named: dict[str, str] = {}
        """The same the other way round."""
        for node in graph.node:
            self.add(node, [tensor_of(text) for text in node.input if not text.startswith("^")])
            path = self.paths[node.name] = _NUMBER.sub(_without_number, node.name)
            self.named[path] = node.name
        self.regions: dict[str, Region] = {}
        self.stages: dict[str, int] = {}

    def add(self, node: Any, inputs: list[Tensor]) -> None:
        self.nodes[node.name] = node
        self.inputs[node.name] = inputs
        self.after[node.name] = [text[1:] for text in node.input if text.startswith("^")]
        self.outputs[node.name] = outputs_of(node, self._library) or ()

    def dtype(self, tensor: Tensor) -> int:
        """The number of its element type."""
        if self.nodes[tensor[0]].op == "_Arg":
            return int(self.nodes[tensor[0]].attr["T"].type)
        return self.outputs[tensor[0]][tensor[1]].dtype

    def place(self, preferred: Sequence[str], fallible: Collection[str]) -> list[str]:
        """Says in which region each node runs, and in which stage of the whole; gives all nodes, each behind those that it runs behind.

        They are in the preferred order as far as that goes. A stage ends where another region begins, or a node that may fail by its values;
        what a loop gives is of a later stage than all that is in it. So whoever waits for what is of earlier stages never waits for himself.
        """
        for name in self._ordered(preferred, {}):
            self.regions[name] = self._region(name)
        within: dict[tuple[str, ...], list[str]] = {}
        for name, region in self.regions.items():
            for depth in range(len(region.frame)):
                within.setdefault(region.frame[: depth + 1], []).append(name)
        loops = {
            name: within[self.regions[self.inputs[name][0][0]].frame]
            for name, node in self.nodes.items()
            if node.op in _EXITS
        }
        order = self._ordered(preferred, loops)
        for name in order:
            stage = max((self.stages[each] for each in loops.get(name, ())), default=0)
            for maker in self._before(name):
                stage = max(stage, self.stages[maker] + (self.regions[maker] != self.regions[name]))
            op = self.nodes[name].op
            self.stages[name] = stage + (name in fallible or op in SWITCHES or op in ENTERS or op in _EXITS)
        return order

    def _before(self, name: str) -> Iterator[str]:
        """The nodes behind which a node runs, without those of the iteration before."""
        is_merge = self.nodes[name].op in _MERGES
        for maker, _ in self.inputs[name]:
            if not (is_merge and self.nodes[maker].op in NEXT):
                yield maker
        yield from self.after[name]

    def _ordered(self, preferred: Sequence[str], also: Mapping[str, Sequence[str]]) -> list[str]:
        found: dict[str, None] = {}
        for first in (*preferred, *self.nodes):
            waiting = [first]
            while waiting:
                name = waiting[-1]
                before = () if name in found else (*self._before(name), *also.get(name, ()))
                missing = [each for each in before if each not in found]
                if missing:
                    waiting += missing
                else:
                    found[name] = None
                    waiting.pop()
        return list(found)

    def region_of(self, tensor: Tensor) -> Region:
        """Where a tensor is there: behind a Switch, in one of its branches."""
        region, node = self.regions[tensor[0]], self.nodes[tensor[0]]
        if node.op not in SWITCHES:
            return region
        decides = (region.frame, self.inputs[tensor[0]][1], tensor[1])
        return Region(region.frame, region.controls | {decides})

    def is_of_loop(self, name: str) -> bool:
        """Whether a Merge begins the iterations of a loop."""
        return any(self.nodes[maker].op in NEXT for maker, _ in self.inputs[name])

    def _region(self, name: str) -> Region:
        node = self.nodes[name]
        tensors = self.inputs[name]
        if node.op in _MERGES:  # it runs behind a node in a branch, too, whether that runs or not
            found = [self.region_of(each) for each in tensors if self.nodes[each[0]].op not in NEXT]
            return Region(found[0].frame, frozenset.intersection(*(each.controls for each in found)))
        around = [*(self.regions[each] for each in self.after[name]), *map(self.region_of, tensors)]
        if not around:
            return _ROOT
        frame = max((each.frame for each in around), key=len)
        controls = frozenset().union(*(each.controls for each in around))
        if node.op in ENTERS:
            return Region((*frame, node.attr["frame_name"].s.decode()), controls)
        if node.op in _EXITS:
            return Region(frame[:-1], frozenset(each for each in controls if each[0] != frame))
        return Region(frame, controls)


_ROOT: Final = Region((), frozenset())


def tensor_of(reference: str) -> Tensor:
    """What an input of a node in a graph names."""
    name, _, slot = reference.partition(":")
    return name, int(slot or 0)


def base_type(node: Any) -> str:
    """The type of a node without what says whose kernel computes it: `MatMul` of `_MklMatMul`."""
    return _VENDOR.sub("", node.op)


def differing(plain: Iterable[Any], own: Iterable[Any], mine: str) -> set[str]:
    """The nodes of some graphs that other graphs have not, or otherwise; names that begin with `mine` are added there.

    How tensors get from one device to another does not count.
    """
    before, after = _compared(plain, mine), _compared(own, mine)
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def _compared(graphs: Iterable[Any], mine: str) -> dict[str, tuple[Any, ...]]:
    graphs = list(graphs)
    nodes = {node.name: node for graph in graphs for node in graph.node}
    sent = {node.attr["tensor_name"].s: node.input[0] for node in nodes.values() if node.op in ("_Send", "_HostSend")}

    def source(text: str) -> Tensor:
        tensor = tensor_of(text)
        node = nodes.get(tensor[0])
        if node is not None and node.op in ("_Recv", "_HostRecv"):
            return source(sent[node.attr["tensor_name"].s])
        if node is not None and node.name.startswith(mine):
            return source(node.input[0])
        return tensor

    found = {}
    for name, node in nodes.items():
        if node.op in PLUMBING or name.startswith(mine):
            continue
        inputs = tuple(source(text) for text in node.input if not text.startswith("^"))
        controls = frozenset(
            text
            for text in node.input
            if text.startswith("^") and not text.startswith(f"^{mine}") and nodes[text[1:]].op != "_Arg"
        )
        if len(graphs) > 1:
            if node.op in ("Const", "Identity") and re.search(r"/_\d+$", name):
                continue  # how one device waits for another
            controls = frozenset()
        attributes = sorted(
            (key, value.SerializeToString(deterministic=True))
            for key, value in node.attr.items()
            if key != "_XlaHasReferenceVars"
        )
        found[name] = (node.op, inputs, controls, node.device, attributes)
    return found


def rounds(dtype: int) -> bool:
    """Whether the order of a sum of such elements matters."""
    found = tf.as_dtype(dtype)
    return bool(found.is_floating or found.is_complex)


def _without_number(found: re.Match[str]) -> str:
    return f"/branch_{found[1]}" if found[1] is not None else ""
