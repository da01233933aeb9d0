"""Which operators are meant by one at which values are lost: who reads a copy, wires what it reads, arranges it, or is what it is the gradient of."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from opdump.comparison.alignment import Alignment
from opdump.comparison.arguments import differing
from opdump.comparison.differences import epsilon_of
from opdump.comparison.lost_values import Lost
from opdump.comparison.nodes import Node
from opdump.comparison.origin_ranking import Code, Pair, code_of, odd_inputs
from opdump.comparison.statistics_apart import same_statistics
from opdump.comparison.trace import Trace
from opdump.records import TensorRecord

_ARRANGERS: Final = frozenset(
    {"cat", "stack", "roll", "flip", "index", "index_select", "gather", "take", "sort", "permute_copy", "index_put"}
)
"""What comes out has elements of what goes in, in an order of its own, which statistics do not tell."""
_MOST_ARRANGERS: Final = 2
_NEAR: Final = 12
"""Who arranged what an operator reads is looked for among so many operators before it."""


@dataclass(frozen=True, slots=True)
class Meanings:
    """Of the operators of a step. `cleared` is code of A and of B whose values came to the same elsewhere."""

    a: Trace
    b: Trace
    alignment: Alignment
    lost_b: Lost
    cleared: tuple[Collection[Code], Collection[Code]]
    _wired: set[int] = field(default_factory=set)
    """Operators of B that `_wired_before` went through, by index."""

    def of(self, pair: Pair) -> Iterator[Pair]:
        """What is meant by an operator, most likely first."""
        one, other = pair
        if other is not None and (other.moves or other.bare_type == "copy"):
            readers = [node for node in self.b.nodes if (other.index, 0) in node.makers.values()]
            lost = [self._aligned(node) for node in readers if node.index in self.lost_b.nodes]
            if lost and lost[0][0] is not None:
                yield lost[0]
                return
        yield from self._forward_of(pair)
        if one is None or other is None:
            yield pair
            return
        yield from self._wired_before(one, other)
        yield from self._given_before(one, other)
        arranged = self._arranged(other) if is_same_as_told(one, other) else []
        yield from (each for each in arranged if each[0] is None or not is_same_as_told(each[0], each[1]))
        yield pair
        yield from arranged[:_MOST_ARRANGERS]
        yield from self._crossed(one, other)

    def _aligned(self, other: Node) -> tuple[Node | None, Node]:
        partner = self.alignment.a_of.get(other.index)
        return None if partner is None else self.a.nodes[partner], other

    def _forward_of(self, pair: Pair) -> Iterator[Pair]:
        """Operators of the forward pass that one program alone has, of whose gradients this is one: these follow from them."""
        sides = ((self.b, self.alignment.a_of, self.cleared[1]), (self.a, self.alignment.b_of, self.cleared[0]))
        for node, (trace, matched, cleared) in zip(reversed(pair), sides, strict=True):
            if node is None or node.op.phase != "backward" or not node.op.forward_op:
                continue
            waiting = [each for each in trace.nodes if each.op.op_name == node.op.forward_op]
            stretch: dict[int, Node] = {}
            while waiting:
                each = waiting.pop()
                if each.index not in matched and each.index not in stretch and code_of(each) not in cleared:
                    stretch[each.index] = each
                    waiting += [trace.nodes[maker] for maker, _ in each.makers.values()]
            for each in (each for _, each in sorted(stretch.items()) if _gives_numbers(each)):
                yield (None, each) if trace is self.b else (each, None)

    def _wired_before(self, one: Node, other: Node) -> Iterator[Pair]:
        """The makers of what a pair reads with other statistics, where both runs have them and these read something else themselves.

        The earliest makers come first. A pair that was given for another operator of the step is not given again: in a long step, the ways back
        from an operator are too many to be walked one by one.
        """
        waiting = [((one, other), self._makers_of_odd(one, other))]
        while waiting:
            (before, after), makers = waiting[-1]
            new = next((pair for pair in makers if pair[1].index not in self._wired), None)
            if new is not None:
                self._wired.add(new[1].index)
                waiting.append((new, self._makers_of_odd(*new)))
                continue
            waiting.pop()
            if waiting and (differing(before, after) or any(odd_inputs(before, after))):
                yield before, after

    def _makers_of_odd(self, one: Node, other: Node) -> Iterator[tuple[Node, Node]]:
        """The matched makers of the inputs that have other statistics."""
        for slot in odd_inputs(one, other):
            maker_a, maker_b = one.makers.get(slot), other.makers.get(slot)
            if maker_a is not None and maker_b is not None and self.alignment.b_of.get(maker_a[0]) == maker_b[0]:
                yield self.a.nodes[maker_a[0]], self.b.nodes[maker_b[0]]

    def _given_before(self, one: Node, other: Node) -> Iterator[Pair]:
        """Who read first what no operator made, and a pair reads otherwise: a parameter that was changed before the optimizer wrote it."""
        for slot in odd_inputs(one, other):
            read = other.inputs[slot]
            if slot in other.makers:
                continue
            for node in self.b.nodes[: other.index]:
                partner, _ = self._aligned(node)
                if partner is not None and any(
                    _is_seen_as(node.inputs[slot], read) for slot in odd_inputs(partner, node)
                ):
                    yield partner, node
                    return

    def _arranged(self, other: Node) -> list[tuple[Node | None, Node]]:
        """Who put what an operator reads into an order, the nearest first."""
        waiting, seen, found = [other], {other.index}, []
        while waiting and len(seen) <= _NEAR:
            for maker, _ in waiting.pop(0).makers.values():
                node = self.b.nodes[maker]
                if maker not in seen:
                    seen.add(maker)
                    waiting.append(node)
                    if node.bare_type in _ARRANGERS:
                        found.append(self._aligned(node))
        return found

    def _crossed(self, one: Node, other: Node) -> Iterator[Pair]:
        """Who made what a pair reads otherwise, where that is another operator that both have."""
        for slot in odd_inputs(one, other):
            maker_a, maker_b = one.makers.get(slot), other.makers.get(slot)
            if maker_a is not None and maker_b is not None:
                partner = self.alignment.a_of.get(maker_b[0])
                if partner is not None and partner != maker_a[0] and maker_a[0] in self.alignment.b_of:
                    yield self.a.nodes[partner], self.b.nodes[maker_b[0]]


def _gives_numbers(node: Node) -> bool:
    """Whether it gives more than masks and places."""
    return any(epsilon_of(record.dtype) for record in node.outputs.values())


def _is_seen_as(record: TensorRecord, read: TensorRecord) -> bool:
    """Whether both are the same memory with the same statistics."""
    if record.memory is None or read.memory is None:
        return False
    return record.memory.storage == read.memory.storage and same_statistics(record, read)


def is_same_as_told(one: Node, other: Node) -> bool:
    """Whether a pair of operators does the same to the same, as far as arguments and statistics tell."""
    return one.bare_type == other.bare_type and not differing(one, other) and not any(odd_inputs(one, other))
