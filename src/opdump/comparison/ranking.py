"""Which suspects come first: those that nothing explains before those that follow from others."""

from __future__ import annotations

from collections.abc import Container, Hashable, Sequence
from typing import Final

from opdump.comparison.arguments import differing
from opdump.comparison.execution import same_inputs
from opdump.comparison.nodes import Node
from opdump.comparison.suspects import Suspect
from opdump.comparison.trace import Trace, has_elements

OF_THE_RUN: Final = frozenset({"memory", "kernel", "data", "parameter"})
"""Kinds that were seen by looking, whatever the programs come to."""


class Reach:
    """What follows from an operator: what reads its outputs, and so on, and the gradients of all these."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._users: dict[int, list[int]] = {}
        for (maker, _), readers in trace.users().items():
            self._users.setdefault(maker, []).extend(index for index, _ in readers)
        self._gradients: dict[str, list[int]] = {}
        for node in trace.nodes:
            if node.op.forward_op:
                self._gradients.setdefault(node.op.forward_op, []).append(node.index)

    def __len__(self) -> int:
        return len(self._trace.nodes)

    def of(self, start: int) -> set[int]:
        """The nodes that follow from a node, without itself."""
        found: set[int] = set()
        waiting = [start]
        while waiting:
            index = waiting.pop()
            node = self._trace.nodes[index]
            for follower in (*self._users.get(index, ()), *self._gradients.get(node.op.op_name, ())):
                if follower not in found and follower != start:
                    found.add(follower)
                    waiting.append(follower)
        return found


def ranked(suspects: Sequence[Suspect], latent: Sequence[Suspect], a: Trace, b: Trace) -> list[Suspect]:
    """The suspects, those that follow from others last.

    `latent` are differences of the programs that made no difference where they stand: they count where something follows from them.
    """
    reach_a, reach_b = Reach(a), Reach(b)
    followers: dict[int, tuple[set[int], set[int]]] = {}

    def reached(suspect: Suspect) -> tuple[set[int], set[int]]:
        if id(suspect) not in followers:
            followers[id(suspect)] = (_reached(reach_a, suspect.a), _reached(reach_b, suspect.b))
        return followers[id(suspect)]

    def follows(suspect: Suspect, cause: Suspect) -> bool:
        in_a, in_b = reached(cause)
        return (suspect.a is not None and suspect.a.index in in_a) or (
            suspect.b is not None and suspect.b.index in in_b
        )

    forward = [suspect for suspect in suspects if not _is_gradient(suspect)]
    gradients = [suspect for suspect in suspects if _is_gradient(suspect)]
    causes = [each for each in latent if any(follows(suspect, each) for suspect in suspects)]
    # What was replaced by A's values on the way does not hand a difference on: suspects of the forward pass stand by themselves. Their
    # gradients differ by themselves, too, since the gradient of another operator is another operator.
    by_order = sorted([*forward, *causes], key=_order)
    own = [
        each
        for each in gradients
        if not any(_is_gradient_of(each, cause) or follows(each, cause) for cause in by_order)
    ]
    rest = [each for each in gradients if all(each is not other for other in own)]
    return [*sorted([*by_order, *own], key=_order), *sorted(rest, key=_order)]


def causes_first(
    found: Sequence[Suspect], causes: Sequence[Suspect], leading: Sequence[Suspect], settled: Container[Hashable]
) -> list[Suspect]:
    """Suspects in this order, but those before the others that make the programs leave something else, and of these those that lead.

    What speaks against the run and not against the program (memory, a kernel, data) stands beside the causes. What was there in a step after
    which both programs were still the same (`settled`) is no cause by itself.
    """
    of_causes, of_leading = ({suspect.name for suspect in those} for those in (causes, leading))
    return sorted(
        found,
        key=lambda suspect: (
            suspect.kind not in OF_THE_RUN and suspect.name not in of_causes,
            suspect.name in settled,
            suspect.kind not in OF_THE_RUN and suspect.name not in of_leading,
        ),
    )


def proven_first(suspects: Sequence[Suspect]) -> list[Suspect]:
    """The suspects, first of all the earliest operator that was given the same bits in both runs and has other arguments or is another one, if it
    ran before what stands first: nothing after it is a better cause.
    """
    proven = [each for each in suspects if each.kind in ("argument", "operator") and _is_proven(each)]
    if not proven:
        return list(suspects)
    earliest = min(proven, key=_order)
    first = suspects[0]
    if first is earliest or first.kind in OF_THE_RUN or _order(first) <= _order(earliest):
        return list(suspects)
    return [earliest, *(each for each in suspects if each is not earliest)]


def _is_proven(suspect: Suspect) -> bool:
    one, other = suspect.a, suspect.b
    if one is None or other is None or not other.inputs:
        return False
    differs = one.bare_type != other.bare_type or bool(differing(one, other))
    return (
        differs
        and all(has_elements(record) for record in other.inputs.values() if not record.skip)
        and same_inputs(one, other)
    )


def _reached(reach: Reach, node: Node | None) -> set[int]:
    return set() if node is None or node.index < 0 or node.index >= len(reach) else reach.of(node.index)


def _is_gradient(suspect: Suspect) -> bool:
    return all(node is None or node.op.phase == "backward" for node in (suspect.a, suspect.b))


def _is_gradient_of(suspect: Suspect, cause: Suspect) -> bool:
    forward = {node.op.op_name for node in (cause.a, cause.b) if node is not None}
    return any(node is not None and node.op.forward_op in forward for node in (suspect.a, suspect.b))


def _order(suspect: Suspect) -> int:
    """By B's order, where it has the operator. Numbers of operators begin anew in what was filed with a step after its end."""
    node = suspect.b or suspect.a
    return 0 if node is None else node.index
