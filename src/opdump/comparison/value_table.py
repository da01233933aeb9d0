"""What was matched by values, as a comparison tells of it: rows of its table, entries of match.yaml, the window around a divergence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from opdump.comparison.across_frameworks import Outcome
from opdump.comparison.alignment import Alignment
from opdump.comparison.match_file import Match, StepMatches, names_of
from opdump.comparison.nodes import Node
from opdump.comparison.pairs import Outputs
from opdump.comparison.trace import Trace
from opdump.comparison.value_matching import Pair, Place
from opdump.comparison.value_run import between


@dataclass(frozen=True)
class ValueTable:
    """The pairs of values of a step, in the order of B."""

    a: Trace
    b: Trace
    found: Outcome

    @cached_property
    def pairs(self) -> Sequence[Pair]:
        """In the order of B."""
        return sorted(self.found.pairs, key=lambda pair: (pair.b, pair.a))

    @cached_property
    def outputs(self) -> Sequence[Outputs]:
        """A row for each pair."""
        return [self._outputs(pair) for pair in self.pairs]

    @property
    def matches(self) -> StepMatches:
        """The entries of match.yaml: each two operators once."""
        found: dict[tuple[int, int], Match] = {}
        for pair, row in zip(self.pairs, self.outputs, strict=True):
            here, there = pair.a[0], pair.b[0]
            match = Match(
                self._names[0][here], self._names[1][there], pair.kind, row.match_score, row.with_a, row.with_b
            )
            if (here, there) not in found or found[here, there].score < match.score:
                found[here, there] = match
        unmatched, unused = (
            [[self._names[side][index] for index in sorted(each[side])] for side in (0, 1)]
            for each in (self.found.unmatched, self.found.unused)
        )
        return StepMatches(
            self.a.rank, self.a.step, self.b.step, [found[each] for each in sorted(found)], *unmatched, *unused
        )

    @property
    def alignment(self) -> Alignment:
        """The first partner of each operator."""
        b_of: dict[int, int] = {}
        a_of: dict[int, int] = {}
        for pair in self.pairs:
            here, there = pair.a[0], pair.b[0]
            if here not in b_of and there not in a_of:
                b_of[here], a_of[there] = there, here
        return Alignment(b_of, a_of)

    def outputs_of(self, one: Node, other: Node) -> Iterable[Outputs]:
        """The rows of two operators."""
        places = one.index, other.index
        return [row for pair, row in zip(self.pairs, self.outputs, strict=True) if (pair.a[0], pair.b[0]) == places]

    def _outputs(self, pair: Pair) -> Outputs:
        one, other = (trace.nodes[index].outputs[slot] for trace, (index, slot) in ((self.a, pair.a), (self.b, pair.b)))
        with_a, with_b = (
            [self._names[side][node.index] for node in between(trace, last, ends) if node.index != last]
            for side, (trace, last, ends) in enumerate(
                ((self.a, pair.a[0], self._ends[0]), (self.b, pair.b[0], self._ends[1]))
            )
        )
        score = round(max(0.0, 1.0 - pair.distance), 3)
        return Outputs(one, other, pair.kind, score, pair.layout, with_a, with_b, pair in self.found.failing)

    @cached_property
    def _ends(self) -> tuple[set[Place], set[Place]]:
        return {pair.a for pair in self.found.pairs}, {pair.b for pair in self.found.pairs}

    @cached_property
    def _names(self) -> tuple[Sequence[str], Sequence[str]]:
        return names_of(self.a), names_of(self.b)
