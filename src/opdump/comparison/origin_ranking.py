"""Which of the operators at which values are lost come first.

An operator that both programs run, given what both have, proves that it gives something else; one that only one program runs may as well
be the beginning of another way to the same. Code whose values came to the same in another layer or step is the last to be named.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from opdump.comparison.alignment import Alignment
from opdump.comparison.ranking import Reach
from opdump.comparison.trace import Node, Trace

Pair = tuple[Node | None, Node | None]
"""An operator of A and one of B."""
Code = tuple[str, str, str, int]
"""A type of operators, their phase, and the line that they stand on."""
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
        """Those that prove something and follow from no other such, then the rest; the code that is cleared last."""
        proofs = [each for each in origins if each.reads_given or self.is_aligned(each.pair)]
        reach = Reach(self.b)
        following = {
            each.pair[1].index
            for one in proofs
            if one.pair[1] is not None
            for reached in [reach.of(one.pair[1].index)]
            for each in proofs
            if each.pair[1] is not None and each.pair[1].index in reached
        }

        def order(origin: Origin) -> tuple[bool, bool, bool, bool, int]:
            other = origin.pair[1]
            is_proof = origin in proofs
            follows = is_proof and other is not None and other.index in following
            is_cleared = not is_proof and self._is_cleared(origin.pair)
            return is_cleared, not is_proof, follows, origin.share < _MOST_REACHED, origin.place

        return sorted(origins, key=order)

    def is_aligned(self, pair: Pair) -> bool:
        """Whether both programs have the operator, as far as is known."""
        one, other = pair
        return one is not None and other is not None and self.alignment.b_of.get(one.index) == other.index

    def _is_cleared(self, pair: Pair) -> bool:
        given = [(code_of(node), codes) for node, codes in zip(pair, self.cleared, strict=True) if node is not None]
        return all(code in codes for code, codes in given)
