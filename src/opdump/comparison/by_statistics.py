"""What statistics alone can prove: where values begin that lead to something that the other run does not leave.

Nothing can be run again, so an operator is named where its inputs are those of the other run, by their statistics, its output is not, and what
follows from it is lost till the end of the step. What cancels (sums that are zero by mathematics) is left alone: its statistics say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from opdump.comparison.alignment import Alignment
from opdump.comparison.arguments import differing
from opdump.comparison.lost_values import Lost, StepValues, only_arranges
from opdump.comparison.statistics_apart import apart, same_statistics
from opdump.comparison.suspects import Kind, Suspect
from opdump.comparison.trace import Node, Trace, leaf_name
from opdump.comparison.value_index import has_statistics

_AGREES: Final = 1e-4
"""Statistics that are closer, relative to the root mean square of the elements, are those of the same tensor."""
_MOST_REACHED: Final = 0.8
"""An operator from which this share of all that is lost follows comes before those from which less follows."""


def have_same_phases(a: Trace, b: Trace) -> bool:
    """Whether both have operators of the same phases in a step."""
    return {node.op.phase for node in a.nodes} == {node.op.phase for node in b.nodes}


Pair = tuple[Node | None, Node | None]
"""An operator of A and one of B."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The suspects, and the step that they are of."""

    suspects: Sequence[Suspect]
    a: Trace
    b: Trace
    alignment: Alignment


class StatisticsComparison:
    """A step of two runs of which there are statistics alone. `before` is that of the step before."""

    def __init__(self, a: Trace, b: Trace, alignment: Alignment, before: StatisticsComparison | None = None) -> None:
        self.a, self.b, self.alignment, self._before = a, b, alignment, before
        self._users_b = b.users()
        self._values: StepValues = StepValues(a, b, alignment, None if before is None else before._values)

    def judged(self) -> Judged:
        """What speaks against operators, most likely first: of the step before, where it made what now is lost."""
        lost = self._values.lost()
        before, self._before = self._before, None
        if before is not None:
            earlier = before._named(*before._values.lost_later(lost))
            if earlier:
                return Judged(earlier, before.a, before.b, before.alignment)
        return Judged(self._named(*lost), self.a, self.b, self.alignment)

    def _named(self, lost_a: Lost, lost_b: Lost) -> list[Suspect]:
        pairs = self._pairs(lost_a, lost_b)

        def order(pair: Pair) -> tuple[bool, int, bool]:
            one, other = pair
            shares = [
                lost.origins[node.index]
                for lost, node in ((lost_a, one), (lost_b, other))
                if node is not None and node.index in lost.origins
            ]
            return max(shares, default=1.0) < _MOST_REACHED, self._place(one, other), other is None

        found: list[Suspect] = []
        meant = [each for pair in sorted(pairs, key=order) for each in self._meant(pair, lost_b)]
        # What only one program puts elsewhere changes nothing by itself.
        telling = [(one, other) for one, other in meant if one is not None or other is None or not only_arranges(other)]
        for one, other in telling or meant:
            suspect = self._suspect(one, other)
            if all(suspect.place != each.place or suspect.kind != each.kind for each in found):
                found.append(suspect)
        return found

    def _pairs(self, lost_a: Lost, lost_b: Lost) -> list[Pair]:
        """The operators at which values are lost, those of both programs together where they belong together."""
        b_of, a_of = self.alignment.b_of, self.alignment.a_of
        alone_a = [self.a.nodes[index] for index in lost_a.origins if index not in b_of]
        alone_b = [self.b.nodes[index] for index in lost_b.origins if index not in a_of]
        free_b = [node for node in self.b.nodes if node.index not in a_of]
        pairs: list[Pair] = []
        for is_like, others, mine in (
            (_is_of_same_type, alone_b, alone_a),
            (_is_of_same_type, free_b, alone_a),
            (_gives_same_sizes, alone_b, alone_a),
        ):
            for one in list(mine):
                partner = self._nearest(one, [other for other in others if is_like(one, other)])
                if partner is not None:
                    pairs.append((one, partner))
                    alone_a.remove(one)
                    for nodes in (alone_b, free_b):
                        if partner in nodes:
                            nodes.remove(partner)
        pairs += [(one, None) for one in alone_a]
        pairs += [(None, other) for other in alone_b]
        matched = {index for index in lost_b.origins if index in a_of}
        matched |= {b_of[index] for index in lost_a.origins if index in b_of}
        pairs += [(self.a.nodes[a_of[index]], self.b.nodes[index]) for index in sorted(matched)]
        return pairs

    def _meant(self, pair: Pair, lost: Lost) -> Iterator[Pair]:
        """What is meant by an operator: of a copy what reads it, of one that reads another value who made that, if that differs itself."""
        one, other = pair
        if other is not None and (other.moves or other.bare_type == "copy"):
            readers = [index for index, _ in self._users_b.get((other.index, 0), ()) if index in lost.nodes]
            if readers and readers[0] in self.alignment.a_of:
                yield self.a.nodes[self.alignment.a_of[readers[0]]], self.b.nodes[readers[0]]
                return
        if one is not None and other is not None:
            yield from self._wired_before(one, other)
        yield pair
        if one is not None and other is not None:
            yield from self._crossed(one, other)

    def _wired_before(self, one: Node, other: Node) -> Iterator[Pair]:
        """Who made what a pair reads otherwise, where both have them and these read something else themselves."""
        for slot in _odd_inputs(one, other):
            maker_a, maker_b = one.makers.get(slot), other.makers.get(slot)
            if maker_a is None or maker_b is None or self.alignment.b_of.get(maker_a[0]) != maker_b[0]:
                continue
            before, after = self.a.nodes[maker_a[0]], self.b.nodes[maker_b[0]]
            yield from self._wired_before(before, after)
            if differing(before, after) or any(_odd_inputs(before, after)):
                yield before, after

    def _crossed(self, one: Node, other: Node) -> Iterator[Pair]:
        """Who made what a pair reads otherwise, where that is another operator that both have."""
        for slot in _odd_inputs(one, other):
            maker_a, maker_b = one.makers.get(slot), other.makers.get(slot)
            if maker_a is not None and maker_b is not None:
                partner = self.alignment.a_of.get(maker_b[0])
                if partner is not None and partner != maker_a[0] and maker_a[0] in self.alignment.b_of:
                    yield self.a.nodes[partner], self.b.nodes[maker_b[0]]

    def _nearest(self, one: Node, others: list[Node]) -> Node | None:
        place = self._place(one, None)
        return min(others, key=lambda other: abs(other.index - place), default=None)

    def _place(self, one: Node | None, other: Node | None) -> int:
        """Where it stands in the order of B."""
        if other is not None:
            return other.index
        assert one is not None
        return max((there for here, there in self.alignment.b_of.items() if here < one.index), default=0)

    def _suspect(self, one: Node | None, other: Node | None) -> Suspect:
        if other is None:
            return Suspect("missing", one, None, "output", 0, math.inf, "B has nowhere what it gives")
        if one is None:
            return Suspect("extra", None, other, "output", 0, math.inf, "A has nowhere what it gives")
        if one.bare_type != other.bare_type:
            what = f"gives what A has nowhere, where A has {one.op.op_type}"
            return Suspect("operator", one, other, "output", 0, math.inf, what)
        arguments = differing(one, other)
        if arguments:
            changes = ", ".join(f"{name}: {old} in A, {new} in B" for name, (old, new) in sorted(arguments.items()))
            return Suspect("argument", one, other, "output", 0, math.inf, changes)
        for slot in _odd_inputs(one, other):
            record = other.inputs[slot]
            if slot not in other.makers and slot not in one.makers:
                kind: Kind = "parameter" if leaf_name(record).startswith("Parameter.") else "data"
                what = f"{leaf_name(record) or 'an input of the program'} differs where it is read first, by its statistics"
                return Suspect(kind, one, other, "input", slot, math.inf, what)
            if _is_overwritten(self.b, other, slot) and not _is_overwritten(self.a, one, slot):
                made_by = self.b.nodes[other.makers[slot][0]].op.op_name
                what = f"is not what {made_by} wrote there, by its statistics, and no operator wrote there since"
                return Suspect("memory", one, other, "input", slot, math.inf, what)
            return Suspect("input", one, other, "input", slot, math.inf, "reads something else, by its statistics")
        return Suspect("kernel", one, other, "output", 0, math.inf, "inputs have the same statistics")


def _is_overwritten(trace: Trace, node: Node, slot: int) -> bool:
    """Whether an input, all of what its maker wrote and counted as unwritten since, has other statistics than that."""
    if slot not in node.makers:
        return False
    maker, output = node.makers[slot]
    made, read = trace.nodes[maker].outputs.get(output), node.inputs[slot]
    if made is None or not has_statistics(made):
        return False
    return made.memory is not None and made.memory == read.memory and not same_statistics(made, read)


def _is_of_same_type(one: Node, other: Node) -> bool:
    return one.bare_type == other.bare_type and one.op.phase == other.op.phase


def _gives_same_sizes(one: Node, other: Node) -> bool:
    return one.sizes == other.sizes and one.op.phase == other.op.phase


def _odd_inputs(one: Node, other: Node) -> Iterator[int]:
    """The inputs of a pair of operators that have other statistics."""
    for slot, record in other.inputs.items():
        before = one.inputs.get(slot)
        if before is not None and has_statistics(record) and has_statistics(before):
            distance = apart(before, record)
            if distance is not None and distance > _AGREES:
                yield slot
