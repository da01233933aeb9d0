"""Which of the operators at which values are lost come first.

An operator that both programs run, given what both have, proves that it gives something else; one that only one program runs may as well
be the beginning of another way to the same. Code whose values came to the same in another layer or step is the last to be named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from opdump.comparison.alignment import Alignment
from opdump.comparison.nodes import Node
from opdump.comparison.ranking import Reach
from opdump.comparison.statistics_apart import apart
from opdump.comparison.trace import Trace
from opdump.comparison.value_index import has_statistics

Pair = tuple[Node | None, Node | None]
"""An operator of A and one of B."""
Code = tuple[str, str, str, int]
"""A type of operators, their phase, and the line that they stand on."""
_AGREES: Final = 1e-4
"""Statistics that are closer, relative to the root mean square of the elements, are those of the same tensor."""
_MOST_REACHED: Final = 0.8
"""An operator from which this share of all that is lost follows comes before those from which less follows."""


def code_of(node: Node) -> Code:
    """What runs there, in every layer and step."""
    frame = node.op.stack[0] if node.op.stack else None
    return node.op.op_type, node.op.phase, frame.file if frame else node.module, frame.line if frame else 0


@dataclass(frozen=True, slots=True)
class Origin:
    """A pair of operators at which values are lost."""

    pair: Pair
    reads_given: bool
    """Whether it reads what no operator made, and the other run has nowhere."""
    share: float
    """How much of all that is lost follows from it."""
    place: int
    """Where it stands in the order of B."""


@dataclass(frozen=True, slots=True)
class OriginRanking:
    """Orders the origins of a step."""

    a: Trace
    b: Trace
    alignment: Alignment
    cleared: tuple[Collection[Code], Collection[Code]] = field(default=((), ()))
    """Of A and B: code whose values came to the same elsewhere."""

    def ranked(self, origins: Sequence[Origin]) -> list[Origin]:
        """Those that prove something and follow from no other, then the rest; the code that is cleared last."""
        flow = _Flow(origins, Reach(self.a), Reach(self.b))
        proofs = [each for each in origins if each.reads_given or self._is_aligned(each.pair)]
        cleared = {id(each) for each in origins if each not in proofs and self._is_cleared(each.pair)}
        causes = [each for each in origins if id(each) not in cleared]
        # That an operator reads something else proves less where that may follow from what one program alone runs.
        certain = [each for each in proofs if each.reads_given or not flow.leads_to_odd_inputs(causes, each)]

        def order(origin: Origin) -> tuple[bool, bool, bool, bool, int]:
            is_proof = origin in certain
            follows = flow.leads_to(certain if is_proof else causes, origin)
            is_small = origin.share < _MOST_REACHED
            # Where values lead may be hidden by rounding, so a proof is believed all the same.
            first, second = (follows, is_small) if is_proof else (is_small, follows)
            return id(origin) in cleared, not is_proof, first, second, origin.place

        return sorted(origins, key=order)

    def _is_aligned(self, pair: Pair) -> bool:
        """Whether both programs have the operator, as far as is known."""
        one, other = pair
        return one is not None and other is not None and self.alignment.b_of.get(one.index) == other.index

    def _is_cleared(self, pair: Pair) -> bool:
        given = [(code_of(node), codes) for node, codes in zip(pair, self.cleared, strict=True) if node is not None]
        return all(code in codes for code, codes in given)


def odd_inputs(one: Node, other: Node) -> Iterator[int]:
    """The inputs of a pair of operators that have other statistics."""
    for slot, record in other.inputs.items():
        before = one.inputs.get(slot)
        if before is not None and has_statistics(record) and has_statistics(before):
            distance = apart(before, record)
            if distance is not None and distance > _AGREES:
                yield slot


class _Flow:
    """What follows from the origins, in either run."""

    def __init__(self, origins: Sequence[Origin], a: Reach, b: Reach) -> None:
        self._reached = {
            id(origin): tuple(
                set() if node is None else reach.of(node.index) for node, reach in zip(origin.pair, (a, b), strict=True)
            )
            for origin in origins
        }

    def leads_to(self, causes: Iterable[Origin], origin: Origin) -> bool:
        """Whether an origin follows from one of others."""
        places = [None if node is None else node.index for node in origin.pair]
        return any(
            place in reached
            for cause in causes
            if cause is not origin
            for place, reached in zip(places, self._reached[id(cause)], strict=True)
        )

    def leads_to_odd_inputs(self, causes: Iterable[Origin], origin: Origin) -> bool:
        """Whether what B's operator of an origin reads, and A's does not, is or follows from what another origin gives."""
        one, other = origin.pair
        if one is None or other is None:
            return False
        makers = {other.makers[slot][0] for slot in odd_inputs(one, other) if slot in other.makers}
        return any(
            maker in self._reached[id(cause)][1] or (cause.pair[1] is not None and cause.pair[1].index == maker)
            for cause in causes
            if cause is not origin
            for maker in makers
        )
