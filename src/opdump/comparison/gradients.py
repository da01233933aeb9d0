"""Gradients that A computes and B does not, though both run the operator they are of: a `detach`, a forward pass without gradients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from opdump.comparison.alignment import Alignment
from opdump.comparison.nodes import Node
from opdump.comparison.trace import Trace


@dataclass(frozen=True, slots=True)
class Lost:
    """Where gradients cease to flow in B: the operator of A that B lacks, and the one of B that stands nearest to it."""

    missing: Node
    nearest: Node | None
    slot: int
    """Which input of `nearest` gets no gradient."""


class LostGradients:
    """The operators of A's backward pass that B lacks, and B has nothing else for."""

    def __init__(self, a: Trace, b: Trace, alignment: Alignment) -> None:
        self._a, self._b, self._alignment = a, b, alignment
        self._users = a.users()
        self._forward = _by_name(a)
        self._gradients_a, self._gradients_b = _gradients(a), _gradients(b)

    def first(self, nodes: Iterable[Node]) -> Lost | None:
        """The first of these nodes of A that B lacks: there the gradient is cut, and what follows is missing for want of it."""
        lost = [node for node in nodes if self._is_lost(node)]
        sums = [node for node in lost if _adds_up(node)]
        # Where gradients are summed, one of them is missing: that one is the cause, if it is there.
        node = next((each for each in lost if each not in sums), next(iter(sums), None))
        return None if node is None else self._placed(node)

    def _is_lost(self, node: Node) -> bool:
        if node.op.phase != "backward" or node.index in self._alignment.b_of or not self._partners(node):
            return False
        return all(other.outputs.keys() < node.outputs.keys() for other in self._instead(node))

    def _partners(self, node: Node) -> list[Node]:
        """The operators of B whose gradient it would be."""
        forward = self._forward.get(node.op.forward_op, ())
        return [
            self._b.nodes[self._alignment.b_of[each.index]] for each in forward if each.index in self._alignment.b_of
        ]

    def _instead(self, node: Node) -> list[Node]:
        """What B alone computes of these gradients with an operator of the same type."""
        return [
            other
            for partner in self._partners(node)
            for other in self._gradients_b.get(partner.op.op_name, ())
            if other.index not in self._alignment.a_of and other.bare_type == node.bare_type
        ]

    def _placed(self, node: Node) -> Lost:
        instead = self._instead(node)
        if instead:
            return Lost(node, instead[0], 0)
        if _adds_up(node):
            return Lost(node, None, 0)
        partners = self._partners(node)
        if any(not self._is_lost(each) for each in self._gradients_a.get(node.op.forward_op, ())):
            # It has other gradients still: what it reads is cut off.
            return Lost(node, partners[0], 0)
        readers = {
            (reader, slot)
            for forward in self._forward[node.op.forward_op]
            for output in forward.outputs
            for reader, slot in self._users.get((forward.index, output), ())
            if self._a.nodes[reader].op.phase == "forward" and reader in self._alignment.b_of
        }
        if len(readers) != 1:
            return Lost(node, None, 0)
        ((reader, slot),) = readers
        return Lost(node, self._b.nodes[self._alignment.b_of[reader]], slot)


def _by_name(trace: Trace) -> dict[str, list[Node]]:
    found: dict[str, list[Node]] = {}
    for node in trace.nodes:
        found.setdefault(node.op.op_name, []).append(node)
    return found


def _gradients(trace: Trace) -> dict[str, list[Node]]:
    """The backward pass by the operators of the forward pass."""
    found: dict[str, list[Node]] = {}
    for node in trace.nodes:
        if node.op.phase == "backward" and node.op.forward_op:
            found.setdefault(node.op.forward_op, []).append(node)
    return found


def _adds_up(node: Node) -> bool:
    """Whether it may sum the gradients of a tensor that several operators read."""
    return node.bare_type == "add" and len(node.inputs) > 1
