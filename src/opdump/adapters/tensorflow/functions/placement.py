"""The place of nodes in an executed graph: their loops and branches, and the order in which they can be observed. Nodes can be added."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from opdump.adapters.tensorflow.effects import Library
from opdump.adapters.tensorflow.graphs.executed import ExecutedGraph, Key
from opdump.adapters.tensorflow.graphs.library import Slot, outputs_of
from opdump.adapters.tensorflow.graphs.regions import Region, Tensor, region_of
from opdump.adapters.tensorflow.graphs.walks import in_order
from opdump.adapters.tensorflow.operator_kinds import ENTERS, EXITS, MERGES, NEXT, SWITCHES


class PlacedGraph:
    """The nodes by name, their inputs, and their places."""

    def __init__(self, graph: ExecutedGraph, library: Library) -> None:
        self._library = library
        self.nodes: dict[str, Any] = {}
        self.inputs: dict[str, list[Tensor]] = {}
        self.after: dict[str, list[str]] = {}
        self.outputs: dict[str, tuple[Slot, ...]] = {}
        self.regions: dict[str, Region] = {}
        self.stages: dict[str, int] = {}
        for node in graph.nodes.values():
            self.add(node, [*map(tensor_of, graph.inputs(node))])

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
        """Find the region in which each node runs, and its stage in the whole; returns all nodes, each after those that run before it.

        The preferred order is kept as far as possible. A stage ends where another region begins, or at a node that may fail because of its values;
        the results of a loop are of a later stage than everything in it. A reader that waits for earlier stages therefore never waits for itself.
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
            if node.op in EXITS
        }
        order = self._ordered(preferred, loops)
        for name in order:
            stage = max((self.stages[each] for each in loops.get(name, ())), default=0)
            for maker in self._before(name):
                stage = max(stage, self.stages[maker] + (self.regions[maker] != self.regions[name]))
            op = self.nodes[name].op
            self.stages[name] = stage + (name in fallible or op in SWITCHES or op in ENTERS or op in EXITS)
        return order

    def _before(self, name: str) -> Iterator[str]:
        """The nodes that run before a node, without those of the previous iteration."""
        is_merge = self.nodes[name].op in MERGES
        for maker, _ in self.inputs[name]:
            if not (is_merge and self.nodes[maker].op in NEXT):
                yield maker
        yield from self.after[name]

    def _ordered(self, preferred: Sequence[str], also: Mapping[str, Sequence[str]]) -> list[str]:
        return in_order((*preferred, *self.nodes), lambda name: (*self._before(name), *also.get(name, ())))

    def region_of(self, tensor: Tensor) -> Region:
        """The region in which a tensor is available: after a Switch, in one of its branches."""
        region, node = self.regions[tensor[0]], self.nodes[tensor[0]]
        if node.op not in SWITCHES:
            return region
        return region.behind(self.inputs[tensor[0]][1], tensor[1])

    def is_of_loop(self, name: str) -> bool:
        """Whether a Merge begins the iterations of a loop."""
        return any(self.nodes[maker].op in NEXT for maker, _ in self.inputs[name])

    def _region(self, name: str) -> Region:
        node = self.nodes[name]
        is_merge = node.op in MERGES
        read = [self.region_of(each) for each in self.inputs[name] if not (is_merge and self.nodes[each[0]].op in NEXT)]
        entered = node.attr["frame_name"].s.decode() if node.op in ENTERS else ""
        return region_of(node.op, read, [self.regions[each] for each in self.after[name]], entered)


def tensor_of(key: Key) -> Tensor:
    """The node and the slot of a tensor."""
    name, _, slot = key.rpartition(":")
    return name, int(slot)
