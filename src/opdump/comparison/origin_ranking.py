"""Which of the operators at which values are lost come first.

An operator that both programs run, given what both have, proves that it gives something else; one that only one program runs may as well
be the beginning of another way to the same. Code whose values came to the same in another layer or step is the last to be named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from opdump.comparison.alignment import Alignment
from opdump.comparison.ranking import Reach
from opdump.comparison.statistics_apart import apart
from opdump.comparison.trace import Node, Trace
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
        reach = Reach(self.b)
        places = {id(each): each.pair[1].index for each in origins if each.pair[1] is not None}
        reached = {key: reach.of(index) for key, index in places.items()}
        proofs = [each for each in origins if each.reads_given or self._is_aligned(each.pair)]
        cleared = {id(each) for each in origins if each not in proofs and self._is_cleared(each.pair)}

        def follows(origin: Origin, causes: Iterable[Origin]) -> bool:
            place = places.get(id(origin))
            return any(place in reached.get(id(each), ()) for each in causes if each is not origin)

        # That an operator reads something else proves less where that may follow from what one program alone runs.
        causes = [each for each in origins if id(each) not in cleared]
        doubtful = {id(each) for each in proofs if self._reads_otherwise(each) and follows(each, causes)}
        certain = [each for each in proofs if id(each) not in doubtful]

        def order(origin: Origin) -> tuple[bool, bool, bool, bool, int]:
            is_proof = origin in certain
            follows_proof = is_proof and follows(origin, certain)
            return id(origin) in cleared, not is_proof, follows_proof, origin.share < _MOST_REACHED, origin.place

        return sorted(origins, key=order)

    def _reads_otherwise(self, origin: Origin) -> bool:
        one, other = origin.pair
        return not origin.reads_given and one is not None and other is not None and any(odd_inputs(one, other))

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
