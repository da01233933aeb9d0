"""What lies between two values that both runs have, and which of it makes the difference."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdump.checks.operator_classes import class_of
from opdump.comparison.differences import difference, epsilon_of, same_bits
from opdump.comparison.execution import replay
from opdump.comparison.memory import Memory, widened
from opdump.comparison.nodes import Node
from opdump.comparison.precision import coarsest
from opdump.comparison.suspects import Kind, Suspect
from opdump.comparison.tensor_layouts import find_layout
from opdump.comparison.trace import Trace, has_elements, leaf_name
from opdump.comparison.value_matching import Pair, Place, same_kind
from opdump.comparison.value_run import Failure, between, epsilon_of_pair, in_roundings, run_on_values, value_in_a
from opdump.records import IO, TensorRecord

Array = NDArray[Any]

_OTHER_ARGUMENTS: Final[Mapping[str, Sequence[Any]]] = {
    "eps": (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-12, 0.0),
    "epsilon": (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-12, 0.0),
}
"""Values that other frameworks give an argument."""
_ARGUMENTS_OF: Final[Mapping[str, tuple[str, Sequence[Any]]]] = {"gelu": ("approximate", ("none", "tanh"))}
"""The same of arguments that a record lacks where they have their default."""
_EXPLAINS: Final = 4.0
"""What is off by this many roundings, and by this much less than before, is explained."""
_MOST_CHANGES: Final = 64
_MOST_LISTED: Final = 6
_SCALED: Final = 1e-5
"""Channels that are this near to being scaled are."""
_CHOOSES: Final = frozenset({"MaxPool", "MaxPool3D", "AdaptiveMaxPool2D", "ClipByValue", "NanToNum"})
"""Concepts that give elements as they are, and may be an error's place all the same."""


@dataclass(frozen=True, slots=True)
class _Change:
    """Something else that A might have done, and what it means if B's value is that."""

    kind: Kind
    node: Node
    evidence: str
    slot: int = 0
    op: Node | None = None
    """The node with other arguments."""
    values: Array | None = None
    """What it reads at `slot`."""
    skips: bool = False
    """It hands its first input on."""
    other: Node | None = None
    """The operator of B that does so."""

    def slots_of(self, node: Node) -> list[int]:
        """Where a node reads what is changed."""
        changed = self.node.inputs[self.slot]
        name = leaf_name(changed)
        if not name:
            return [self.slot] if node is self.node else []
        return [slot for slot, each in node.inputs.items() if (leaf_name(each), each.shape) == (name, changed.shape)]


def named(
    a: Trace, b: Trace, pairs: Mapping[Place, Pair], failure: Failure, *, sides: tuple[str, str] = ("A", "B")
) -> Suspect:
    """The operator that makes the difference: the one that gives B's value if it is changed, else the one without a counterpart, else the last.

    `sides` is what the two runs are called in words.
    """
    pair = failure.pair
    ours = between(a, pair.a[0], pairs)
    theirs = between(b, pair.b[0], {each.b for each in pairs.values()})
    other = b.nodes[pair.b[0]]
    how = _how(failure, ours, theirs, sides)
    if failure.given is None:
        stretch = _Stretch(a, b, pair, ours, run_on_values(a, b, pairs, {node.index for node in ours}).inputs)
        found = stretch.explained(_changes(ours, theirs, sides), failure.times)
        if found is not None:
            io: IO = "input" if found.values is not None else "output"
            evidence = f"{found.evidence}; {how}"
            return Suspect(found.kind, found.node, found.other or other, io, found.slot, failure.times, evidence)
    odd = _odd_parameter(ours, theirs, sides)
    if odd is not None:
        evidence = f"{odd.evidence}; {how}"
        return Suspect("parameter", odd.node, odd.other or other, "input", odd.slot, failure.times, evidence)
    alone, others = _without_counterpart(ours, theirs), _without_counterpart(theirs, ours)
    if len(ours) == 1 and not alone and len(others) == 1:
        return Suspect("extra", ours[0], others[0], "output", 0, failure.times, how)
    # A batch norm has no counterpart where the other side folded it into a convolution.
    likely = [node for node in alone if not is_batch_norm(node)] if others else []
    one, another = (likely or alone or ours)[-1], others[-1] if alone and others else other
    return Suspect("operator", one, another, "output", 0, failure.times, how)


def is_batch_norm(node: Node) -> bool:
    """Whether it scales channels by statistics of its parameters."""
    return "BatchNorm" in node.concepts


def _how(failure: Failure, ours: Sequence[Node], theirs: Sequence[Node], sides: tuple[str, str]) -> str:
    if failure.given is not None:
        return (
            f"what it is given agrees to {failure.given:.2g}, what it gives differs by {failure.off:.2g} of its size; it could not be "
            "run again, so whether rounding can do that is not proven"
        )
    return (
        f"for the same values, {_listed(theirs)} in {sides[1]} is {failure.off:.2g} of its size off what {_listed(ours)} in {sides[0]} "
        f"gives in float64, {failure.times:,.0f} times what rounding makes of that"
    )


def _listed(nodes: Sequence[Node]) -> str:
    types = [node.bare_type for node in nodes]
    return " + ".join(types) if len(types) <= _MOST_LISTED else f"{' + '.join(types[:2])} + ... + {types[-1]}"


def _without_counterpart(ours: Sequence[Node], theirs: Sequence[Node]) -> list[Node]:
    """The nodes of which the other side has none of the kind left; those that compute shapes or move elements do not count."""
    free = list(theirs)
    alone = []
    for node in ours:
        partner = next((each for each in free if same_kind(node, each)), None)
        if partner is not None:
            free.remove(partner)
        elif _computes(node):
            alone.append(node)
    return alone


def _computes(node: Node) -> bool:
    """Whether it makes numbers that it was not given, or chooses among them."""
    if not any(epsilon_of(record.dtype) for record in node.outputs.values()):
        return False
    return bool(node.concepts & _CHOOSES) or class_of(node.op.op_type) not in ("moves", "casts")


def _changes(ours: Sequence[Node], theirs: Sequence[Node], sides: tuple[str, str]) -> Iterator[_Change]:
    """What might have been done otherwise, the likeliest first."""
    for node in ours:
        for name, values in _choices(node):
            old = node.arguments.get(name, values[0])
            for value in values:
                if value != old:
                    changed = replace(node, op=replace(node.op, arguments={**node.op.arguments, name: value}))
                    evidence = f"{name}: {old} in {sides[0]}, as if {value} in {sides[1]}"
                    yield _Change("argument", node, evidence, op=changed)
    yield from _other_parameters(ours, theirs, sides)
    for node in _without_counterpart(ours, theirs):
        if 0 in node.inputs and 0 in node.outputs and node.inputs[0].shape == node.outputs[0].shape:
            yield _Change("missing", node, f"has no counterpart in {sides[1]}", skips=True)


def _other_parameters(ours: Sequence[Node], theirs: Sequence[Node], sides: tuple[str, str]) -> Iterator[_Change]:
    leaves = list(_once(_leaves(theirs)))
    for node, slot, record in _once(_leaves(ours)):
        mine = record.numpy()
        for other, _, leaf in leaves:
            if math.prod(leaf.shape) != mine.size or leaf.dtype != record.dtype:
                continue
            found = find_layout(mine, leaf.numpy(), within=math.inf)
            if found is None or same_bits(values := found[0].apply(leaf.numpy()), mine):
                continue
            name = leaf_name(record) or f"input {slot}"
            evidence = f"{name} is {found[1]:.2g} of its size off {leaf_name(leaf) or 'what is read'} in {sides[1]}"
            yield _Change("parameter", node, evidence, slot, values=values, other=_first_to_compute(other, theirs))


def _odd_parameter(ours: Sequence[Node], theirs: Sequence[Node], sides: tuple[str, str]) -> _Change | None:
    """A parameter that B seems not to have, where it cannot be tried: packed with others, or scaled by a batch norm that was folded into it."""
    leaves = list(_once(_leaves(theirs)))
    for node, slot, record in _once(_leaves(ours)):
        mine = record.numpy()
        name = leaf_name(record)
        if mine.ndim < 2 or mine.dtype.kind != "f" or not name:
            continue
        for other, _, leaf in leaves:
            if leaf_name(leaf) == name and leaf.shape == record.shape and not _is_scaled(mine, leaf.numpy()):
                evidence = f"{name} has other elements in {sides[1]}, whatever each channel is scaled by"
                return _Change("parameter", node, evidence, slot, other=_first_to_compute(other, theirs))
        for turned in (mine, mine.T):
            held = {row.tobytes() for _, _, leaf in leaves for row in _rows(leaf.numpy(), turned)}
            rows = _rows(turned, turned)
            missing = sum(row.tobytes() not in held for row in rows)
            if 0 < missing <= len(rows) // 2:
                evidence = f"{missing:,} of {len(rows):,} rows of {name} are in no parameter that {sides[1]} reads here"
                return _Change("parameter", node, evidence, slot)
    return None


def _rows(array: Array, like: Array) -> Array:
    """The rows of a tensor, if they are as long as those of the other."""
    length = like.shape[-1]
    fits = array.ndim > 1 and array.dtype == like.dtype and array.shape[-1] == length
    return np.ascontiguousarray(array).reshape(-1, length) if fits else np.empty((0, length), like.dtype)


def _is_scaled(one: Array, other: Array) -> bool:
    """Whether each channel of the other is that of the first, times some factor."""
    x, y = (array.reshape(len(array), -1).astype(np.float64) for array in (one, other))
    squares = np.sum(x * x, axis=1, keepdims=True)
    factors = np.divide(np.sum(x * y, axis=1, keepdims=True), squares, out=np.zeros_like(squares), where=squares > 0)
    return difference(y, factors * x).relative < _SCALED


def _first_to_compute(reader: Node, nodes: Sequence[Node]) -> Node:
    """The first operator that does more than move what the reader reads."""
    reached = {reader.index}
    for node in nodes:
        if node.index in reached or any(maker in reached for maker, _ in node.makers.values()):
            if _computes(node):
                return node
            reached.add(node.index)
    return reader


def _once(leaves: Iterable[tuple[Node, int, TensorRecord]]) -> Iterator[tuple[Node, int, TensorRecord]]:
    """Those of one name and shape at their first reader: a recurrent network reads its weights at every position."""
    seen: set[tuple[str, tuple[int, ...]]] = set()
    for node, slot, record in leaves:
        key = leaf_name(record), record.shape
        if not key[0] or key not in seen:
            seen.add(key)
            yield node, slot, record


def _leaves(nodes: Sequence[Node]) -> Iterator[tuple[Node, int, TensorRecord]]:
    """What the nodes read that no operator made."""
    for node in nodes:
        for slot, record in node.inputs.items():
            if slot not in node.makers and has_elements(record):
                yield node, slot, record


def _choices(node: Node) -> Iterator[tuple[str, Sequence[Any]]]:
    """Arguments of which other values are tried."""
    yield from ((name, values) for name, values in _OTHER_ARGUMENTS.items() if name in node.arguments)
    if node.bare_type.lower() in _ARGUMENTS_OF:
        yield _ARGUMENTS_OF[node.bare_type.lower()]


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A's operators of one stretch with what each was given, and B's value that they should give."""

    a: Trace
    b: Trace
    pair: Pair
    nodes: Sequence[Node]
    inputs: Mapping[int, Mapping[int, Array]]

    def explained(self, changes: Iterator[_Change], times: float) -> _Change | None:
        """The first change with which A gives B's value."""
        theirs = value_in_a(self.b, self.pair)
        if theirs is None:
            return None
        own = coarsest(record for node in self.nodes for record in node.outputs.values())
        epsilon = max(epsilon_of_pair(self.a, self.b, self.pair), own)
        for change in itertools.islice(changes, _MOST_CHANGES):
            exact, rounded = self._run(change, "float64"), self._run(change, "float32")
            if exact is None or rounded is None or exact.size != theirs.size:
                continue
            left, _ = in_roundings(exact, rounded, theirs, epsilon)
            if left <= _EXPLAINS and left * _EXPLAINS <= times:
                return change
        return None

    def _run(self, change: _Change, dtype: str) -> Array | None:
        memory = Memory()
        outputs: Mapping[int, Array] = {}
        for node in self.nodes:
            values = {slot: self._input(memory, node, slot, kept) for slot, kept in self.inputs[node.index].items()}
            is_changed = node is change.node
            if change.values is not None:
                values.update(dict.fromkeys(change.slots_of(node), widened(change.values)))
            if is_changed and change.skips:
                outputs = {0: values[0]}
            else:
                done = replay(change.op if is_changed and change.op is not None else node, values, dtype)
                if done is None:
                    return None
                outputs = done.outputs
            for slot, record in node.outputs.items():
                if slot in outputs and outputs[slot].size == math.prod(record.shape):
                    memory.write(node.index, slot, record, outputs[slot].reshape(record.shape))
        return outputs.get(self.pair.a[1])

    def _input(self, memory: Memory, node: Node, slot: int, kept: Array) -> Array:
        read = memory.read(node, slot)
        if read.values is None or not read.writers - {-1}:
            return kept
        return read.values if read.unknown is None else np.where(read.unknown, kept, read.values)
