"""Sums whose order of summation depends on who else holds what they read.

AddN sums into the first of its inputs that nobody else holds, and begins with it: `a + b + c` becomes `c + b + a` where `a` and `b` are
fetched. BufferForwarding of floating-point numbers differ in the last bits then. The first two may change places without that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

import tensorflow as tf

from opdump.adapters.tensorflow.operator_kinds import is_stateful

Tensor = tuple[str, int]
"""A node and the slot of its output."""
State = Literal["free", "held", "either"]
"""Whether somebody holds a buffer."""

LEAST_INPUTS: Final = 3
SHARES: Final = frozenset(
    {"BroadcastTo", "EnsureShape", "ExpandDims", "Pad", "PadV2", "Reshape", "Reverse", "ReverseV2", "Slice", "SplitV"}
    | {"StridedSlice", "Tile", "Transpose", "Unpack", "Bitcast", "Cast", "Max", "Mean", "Min", "Prod", "Squeeze", "Sum"}
    | {"CheckNumerics", "DebugGradientIdentity", "Identity", "PlaceholderWithDefault", "PreventGradient", "Snapshot"}
    | {"StopGradient", "RefIdentity", "Enter", "Exit", "NextIteration", "Switch"}
    | {"RefEnter", "RefExit", "RefNextIteration", "RefSwitch"}
)
"""May give the buffer of their first input; Split and IdentityN too, of others."""
_SHARES_ALWAYS: Final = frozenset(
    {"Identity", "IdentityN", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient", "Switch", "Exit"}
    | {
        "NextIteration",
        "Enter",
        "Merge",
        "RefIdentity",
        "RefSwitch",
        "RefEnter",
        "RefExit",
        "RefNextIteration",
        "RefMerge",
    }
)
"""Give the buffer itself, whatever their attributes and shapes."""
_MERGES: Final = frozenset({"Merge", "RefMerge"})
_NEXT: Final = frozenset({"NextIteration", "RefNextIteration"})
_RUN_FUNCTIONS: Final = frozenset(
    {"PartitionedCall", "StatelessIf", "StatelessWhile", "StatelessCase", "If", "While", "Case"}
)
_SPARSE_UPDATES: Final = ("ResourceSparseApply", "ResourceScatter")
_HELD: Final = frozenset({"Const", "Placeholder", "VariableV2", "Variable", "_Arg"})
"""Somebody holds what these give for as long as a run lasts."""


class BufferForwarding:
    """The sums of three and more floating-point tensors in a graph, where `asked` are held.

    `nodes` are its NodeDefs by name.
    """

    def __init__(self, nodes: Mapping[str, Any], asked: Iterable[str]) -> None:
        self._nodes = nodes
        self._asked = list(asked)
        self._sums = {total.name: total for total in _sums(_Buffers(nodes), self._asked)}

    @property
    def left_to_chance(self) -> tuple[str, ...]:
        """Those whose order depends on which of two operators comes first, where nothing says which."""
        return tuple(name for name, total in self._sums.items() if len(total.beginnings()) > 1)

    def disturbing(self, nodes: Mapping[str, Any], added: Iterable[str], *, strict: bool) -> set[str]:
        """The tensors among `added` that may not be held too, so that the sums stay what they are.

        `nodes` is the graph with them: there may be more readers. `strict`: what is added may be held for a part of the run alone, or not
        be held after all. Where chance decides about a sum, its summands are left alone.
        """
        if not self._sums:
            return set()
        buffers = _Buffers(nodes)
        names: dict[Tensor, set[str]] = defaultdict(set)
        for name in added:
            names[buffers.root(_tensor(name))].add(name)
        found: set[str] = set()
        for total in _sums(buffers, self._asked):
            old = self._sums.get(total.name)
            if old is None or len(old.roots) != len(total.roots):
                continue  # made for what is added
            first, reached = old.beginnings(), old.reached()
            if len(first) == 1:
                then = total.beginnings(names, strict=strict, unsure=buffers.copied)
                reached = [] if then == first else [place for place in reached if old.states[place] == "free"]
            for place in reached:
                root = total.roots[place]
                found |= names.get(root, set())
                new = [reader for reader in buffers.readers(root) if reader not in self._nodes]
                if new:
                    behind = set(new).union(*map(buffers.behind, new))
                    found.update(name for each in names.values() for name in each if _tensor(name)[0] in behind)
        return found


@dataclass(frozen=True, slots=True)
class _Sum:
    """A sum of three or more floating-point tensors: the buffers of its summands, and whether others hold these when it is made."""

    name: str
    roots: tuple[Tensor, ...]
    states: tuple[State, ...]

    def reached(self) -> list[int]:
        """The summands that the sum may be made in."""
        found = []
        for place, state in enumerate(self.states):
            if state != "held":
                found.append(place)
            if state == "free":
                break
        return found

    def beginnings(
        self, added: Collection[Tensor] = (), *, strict: bool = False, unsure: Collection[Tensor] = ()
    ) -> set[int]:
        """The summands that the sum may begin with, where `added` are held too; 0 for each of the first two, and where all are held.

        Whoever holds a part of what is `unsure` may hold another buffer than the sum reads.
        """
        found = set()
        for place, (root, state) in enumerate(zip(self.roots, self.states, strict=True)):
            if state == "held" or (root in added and not strict and root not in unsure):
                continue
            found.add(place if place > 1 else 0)
            if state == "free" and root not in added:
                return found
        return found | {0}


def _sums(buffers: _Buffers, asked: Iterable[str]) -> Iterator[_Sum]:
    held = {buffers.root(_tensor(name)) for name in asked}
    for node in buffers.nodes.values():
        if node.op != "AddN" or not _rounds(node):
            continue
        roots = tuple(buffers.root(tensor) for tensor in _tensors(node))
        if len(roots) >= LEAST_INPUTS:
            states = {root: "held" if root in held else buffers.state(root, node.name) for root in set(roots)}
            yield _Sum(node.name, roots, tuple(states[root] for root in roots))


def _rounds(node: Any) -> bool:
    dtype = tf.as_dtype(node.attr["T"].type)
    return bool(dtype.is_floating or dtype.is_complex)


class _Buffers:
    """Which tensors of a graph may be one buffer; a buffer is named by one of them."""

    def __init__(self, nodes: Mapping[str, Any]) -> None:
        self.nodes = nodes
        self._next: dict[Tensor, Tensor] = {}
        self._behind: dict[str, frozenset[str]] = {}
        self._may_be_copied = any(node.op.startswith(_SPARSE_UPDATES) for node in nodes.values())
        """Whether what is read of a variable may be a copy of it."""
        reads = [(node, _tensors(node)) for node in nodes.values()]
        copied = []
        for node, inputs in reads:
            for slot, tensor in _handed_on(node, inputs):
                self._join((node.name, slot), tensor)
                if node.op not in _SHARES_ALWAYS:
                    copied.append(tensor)
        self.copied = {self.root(tensor) for tensor in copied}
        """Buffers that may be one or several: somebody may give a copy."""
        self._readers: dict[Tensor, list[str]] = defaultdict(list)
        """Who reads a buffer, as often as it does, and makes another one."""
        self._merged: set[Tensor] = set()
        """Buffers that may be one of several."""
        self._unsure: set[Tensor] = set()
        """Buffers whose operators may hold them."""
        for node, inputs in reads:
            handed_on = {tensor for _, tensor in _handed_on(node, inputs)}
            for tensor in inputs:
                if tensor not in handed_on:
                    self._readers[self.root(tensor)].append(node.name)
            if node.op in _MERGES:
                self._merged.add(self.root((node.name, 0)))
            for tensor in inputs:
                maker = nodes.get(tensor[0])
                if maker is not None and (is_stateful(maker.op) or maker.op in _RUN_FUNCTIONS):
                    self._unsure.add(self.root(tensor))

    def root(self, tensor: Tensor) -> Tensor:
        """The name of a tensor's buffer."""
        while tensor in self._next:
            tensor = self._next[tensor]
        return tensor

    def readers(self, root: Tensor) -> Collection[str]:
        """Who reads a buffer and makes another one."""
        return self._readers.get(root, ())

    def state(self, root: Tensor, by: str) -> State:
        """Whether somebody else holds a buffer when an operator reads it."""
        if self._is_always_held(root):
            return "held"
        others = list(self._readers[root])
        others.remove(by)
        if not others:
            return "either" if root in self._merged | self._unsure else "free"
        if by in others or not self.behind(by).isdisjoint(others):
            return "held"
        if root in self._merged | self._unsure or not self._ahead(by).issuperset(others):
            return "either"
        return "free"

    def behind(self, name: str) -> frozenset[str]:
        """What runs after an operator in any case, within an iteration."""
        if name not in self._behind:
            self._behind[name] = _reached(name, self._followers)
        return self._behind[name]

    def _ahead(self, name: str) -> frozenset[str]:
        """What runs before an operator in any case, within an iteration."""
        return _reached(name, self._sources)

    def _is_always_held(self, root: Tensor) -> bool:
        node = self.nodes.get(root[0])
        if node is None or root in self._merged:
            return False
        return node.op in _HELD or (node.op == "ReadVariableOp" and not self._may_be_copied)

    @cached_property
    def _sources(self) -> dict[str, list[str]]:
        """Node -> what it reads or waits for, but for the iteration before."""
        return {
            name: [
                source
                for source in (_tensor(text.removeprefix("^"))[0] for text in node.input)
                if source in self.nodes and self.nodes[source].op not in _NEXT
            ]
            for name, node in self.nodes.items()
        }

    @cached_property
    def _followers(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for name, sources in self._sources.items():
            for source in sources:
                found[source].append(name)
        return found

    def _join(self, first: Tensor, second: Tensor) -> None:
        first, second = self.root(first), self.root(second)
        if first != second:
            self._next[first] = second


def _reached(name: str, edges: Mapping[str, Iterable[str]]) -> frozenset[str]:
    found: set[str] = set()
    waiting = list(edges.get(name, ()))
    while waiting:
        current = waiting.pop()
        if current not in found:
            found.add(current)
            waiting += edges.get(current, ())
    return frozenset(found)


def _handed_on(node: Any, inputs: Sequence[Tensor]) -> Iterator[tuple[int, Tensor]]:
    """The slots of the outputs that may be the buffer of an input, with that input."""
    if node.op in _MERGES or node.op in SHARES or node.op == "Split":
        slots = {"Switch": 2, "RefSwitch": 2, "Unpack": node.attr["num"].i}.get(node.op, 1)
        if node.op in ("Split", "SplitV"):
            slots = node.attr["num_split"].i
        read = inputs if node.op in _MERGES else inputs[1:2] if node.op == "Split" else inputs[:1]
        yield from ((slot, tensor) for slot in range(slots) for tensor in read)
    elif node.op == "IdentityN":
        yield from enumerate(inputs)


def _tensors(node: Any) -> list[Tensor]:
    return [_tensor(name) for name in node.input if not name.startswith("^")]


def _tensor(name: str) -> Tensor:
    node, _, slot = name.partition(":")
    return node, int(slot or 0)
