"""Compares the results of two programs whose operators were matched by their values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from opdump.comparison.accuracy import RESULT, distance
from opdump.comparison.differences import epsilon_of, in_roundings
from opdump.comparison.nodes import Node, Place, Suspect, reachable
from opdump.comparison.results import computed_results, picks, reads_only_shapes, trains, used_results
from opdump.comparison.trace import Trace
from opdump.comparison.value_matching import STANDS_FOR, WITHIN, Matched, Pair, Shared
from opdump.records import CALL, TensorRecord, shown_shape

_QUANTISED_APART: Final = 0.05
"""The largest difference of results of quantised networks, relative to the size of the values."""


def have_same_results(a: Trace, b: Trace, matched: Matched, beside: tuple[Trace, Trace] | None) -> bool:
    """Whether two programs have results, and each result of one is a result of the other, with its elements in the same order. Only in training may its shape
    differ: optimizers may keep their states flat. `beside` is another step of the two runs.
    """
    may_be_flat = trains(a, b)
    used_a, used_b = (
        {place: _numbers_of(trace, place, shared) for place in used_results(trace, other)}
        for trace, shared, other in zip((a, b), (matched.a, matched.b), beside or (None, None), strict=True)
    )

    def are_same(ours: Place, theirs: Place) -> bool:
        one, other = a.at(ours), b.at(theirs)
        is_shaped = may_be_flat or one.shape == other.shape
        return is_shaped and not used_a[ours].isdisjoint(used_b[theirs]) and not _is_reordered(one, other)

    return (
        bool(used_a)
        and all(any(are_same(ours, theirs) for theirs in used_b) for ours in used_a)
        and all(any(are_same(ours, theirs) for ours in used_a) for theirs in used_b)
    )


def _numbers_of(trace: Trace, place: Place, shared: Shared) -> set[int]:
    """The numbers of the common values of a result. If a call of a compiled function returned it, also the number of the value in the function, which
    may be rounded differently.
    """
    index, slot = place
    node = trace.nodes[index]
    maker = node.makers.get(slot if slot >= 0 else ~slot) if slot < 0 or node.op.repeats_operators else None
    found = [shared.made.get(place if maker is None else maker), shared.made.get(place)]
    return {each for each in (*found, shared.read.get((index, ~slot))) if each is not None}


def have_open_results(a: Trace, b: Trace, pairs: Mapping[Place, Pair], matched: Matched) -> bool:
    """Whether both programs have results that were not found in the other."""
    held, found = held_by_both(a, b, pairs.values(), matched), _Results.of_both(a, b, pairs.values(), matched)
    return not (_makers_of_results(a) <= held[0] or _makers_of_results(b) <= held[1]) or all(
        each.lost({}, each) for each in found
    )


def unused_by_both(a: Trace, b: Trace, held: tuple[Collection[int], Collection[int]]) -> tuple[set[int], set[int]]:
    """The operators of A and of B that lead to no result of the other program; none if it has a result that this one lacks. `held` as from `held_by_both`."""
    lacks_b, lacks_a = _makers_of_results(b) - set(held[1]), _makers_of_results(a) - set(held[0])
    return (
        set() if lacks_b else {node.index for node in a.nodes}.difference(held[0]),
        set() if lacks_a else {node.index for node in b.nodes}.difference(held[1]),
    )


def held_by_both(a: Trace, b: Trace, pairs: Collection[Pair], matched: Matched) -> tuple[set[int], set[int]]:
    """The operators of A and of B that have a value of the other program, those that lead to one, and those that only move or return one."""
    return (
        _explained(a, {_made_by(a, place) for place in (*(pair.a for pair in pairs), *matched.a.made)}),
        _explained(b, {_made_by(b, place) for place in (*(pair.b for pair in pairs), *matched.b.made)}),
    )


def leading_to(trace: Trace, nodes: Iterable[int]) -> set[int]:
    """These nodes, and those on whose values they depend."""

    def makers(index: int) -> Iterable[int]:
        node = trace.nodes[index]
        is_left_out = reads_only_shapes(node) or node.op.repeats_operators
        return () if is_left_out else (_made_by(trace, maker) for maker in node.makers.values())

    return reachable(nodes, makers)


def _made_by(trace: Trace, place: Place) -> int:
    """The operator that made an output."""
    return _origin(trace, place)[0]


def _origin(trace: Trace, place: Place) -> Place:
    """The output itself; for an output of a call, that of the operator inside, which may be rounded differently."""
    index, slot = place
    node = trace.nodes[index]
    while node.op.repeats_operators and slot in node.makers:
        index, slot = node.makers[slot]
        node = trace.nodes[index]
    return index, slot


def _explained(trace: Trace, nodes: Iterable[int]) -> set[int]:
    found = leading_to(trace, nodes)
    for node in trace.nodes:
        hands_on = node.op.repeats_operators or (node.operator_class == "moves" and not picks(node))
        if hands_on and node.makers and all(maker in found for maker, _ in node.makers.values()):
            found.add(node.index)
    return found


def _makers_of_results(trace: Trace) -> set[int]:
    """The operators that compute the results; what a writer without outputs is given is a result of its maker."""
    found = set()
    for place in computed_results(trace):
        index, slot = place
        maker = trace.nodes[index].makers.get(~slot) if slot < 0 else place
        found.add(index if maker is None else _made_by(trace, maker))
    return found


def results_apart(a: Trace, b: Trace, pairs: Mapping[Place, Pair]) -> Iterator[Suspect]:
    """Results with the same name in both programs whose values were not judged and that differ by more than rounding."""
    is_quantised = any(node.bare_type == "QuantizeLinear" for node in (*a.nodes, *b.nodes))
    for one, other in _results_of_both(a, b):
        for slot in sorted(one.outputs.keys() & other.outputs.keys()):
            pair = pairs.get((one.index, slot))
            if pair is not None and pair.layout is not None:
                continue
            off = distance(one.outputs[slot], other.outputs[slot])
            if off is None or (is_quantised and off <= _QUANTISED_APART):
                continue
            epsilon = epsilon_of(one.outputs[slot].dtype)
            if off > RESULT.of(epsilon) and off > RESULT.of(_rounding(a, one.index, b, other.index)):
                what = f"a result of both programs, which differs by {off:.2g} of its size"
                yield Suspect("result", one, other, "output", slot, in_roundings(off, epsilon), what)


def _results_of_both(a: Trace, b: Trace) -> Iterator[tuple[Node, Node]]:
    """The operators of A that make results, each with the one of B that has the same name or stands for the same operators, in the same iteration."""
    known_as = {name: b.nodes[index] for index in _makers_of_results(b) for name in _names(b.nodes[index])}
    for one in (a.nodes[index] for index in sorted(_makers_of_results(a))):
        other = next((known_as[name] for name in _names(one) if name in known_as), None)
        if other is not None:
            yield one, other


def _names(node: Node) -> list[tuple[str, int]]:
    """The names of an operator, each with the number of its execution under this name."""
    return [(name, node.op.occurrence) for name in (node.op.op_name, *node.op.arguments.get(STANDS_FOR, ()))]


def results_lost(a: Trace, b: Trace, pairs: Mapping[Place, Pair], matched: Matched) -> list[Suspect]:
    """The first result of A that differs in B: B has the same elements in a different order, or a different result of the same size in its place."""
    ours, theirs = _Results.of_both(a, b, pairs.values(), matched)
    differing = itertools.chain(_reordered(ours, theirs, matched), _replaced(ours, theirs, pairs.values()))
    return [
        Suspect("result", a.nodes[place[0]], b.nodes[other[0]], "output", other[1], math.inf, what)
        for place, other, what in itertools.islice(differing, 1)
    ]


def results_of_other_shapes(a: Trace, b: Trace, matched: Matched) -> list[Suspect]:
    """The first result of A that B has only in other shapes; none in training. For two modes of a framework: frameworks return results in different shapes."""
    if trains(a, b):
        return []
    ours, theirs = ([place for place in computed_results(trace) if place[1] >= 0] for trace in (a, b))
    for place in ours:
        number = matched.a.made.get(place)
        same = [each for each in theirs if number is not None and matched.b.made.get(each) == number]
        if same and all(b.at(each).shape != a.at(place).shape for each in same):
            what = f"a result has the shape {shown_shape(a.at(place).shape)} in one run and {shown_shape(b.at(same[0]).shape)} in the other"
            return [Suspect("result", a.nodes[place[0]], b.nodes[same[0][0]], "output", same[0][1], math.inf, what)]
    return []


@dataclass(frozen=True, slots=True)
class _Results:
    """The outputs that are results of a program; in training, only numbers that the forward pass computes, such as the loss, because optimizers may keep
    different states. The other program has those in `held`.
    """

    trace: Trace
    places: Sequence[Place]
    held: Collection[Place]

    @classmethod
    def of_both(cls, a: Trace, b: Trace, pairs: Collection[Pair], matched: Matched) -> tuple[_Results, _Results]:
        held_a, held_b = held_by_both(a, b, pairs, matched)
        return (
            cls._of(a, held_a, {*matched.a.made, *(pair.a for pair in pairs)}),
            cls._of(b, held_b, {*matched.b.made, *(pair.b for pair in pairs)}),
        )

    @classmethod
    def _of(cls, trace: Trace, held: Collection[int], valued: Collection[Place]) -> _Results:
        """`held` are the operators that the other program has, and `valued` the outputs. Of several outputs of one operator, it may have only some."""
        places = [place for place in computed_results(trace) if place[1] >= 0]
        if trains(trace):
            places = [each for each in places if not trace.at(each).shape and trace.phase_of(each) == "forward"]
        origins = {place: _origin(trace, place) for place in places}
        alone = {
            place for place, (index, _) in origins.items() if index in held and len(trace.nodes[index].outputs) == 1
        }
        return cls(trace, places, alone.union(p for p in places if p in valued or origins[p] in valued))

    def lost(self, partners: Mapping[Place, Place], other: _Results) -> list[Place]:
        """The results that the other program lacks, and those from which it computes a different result. `partners` has the paired values."""
        return [place for place in self.places if place not in self.held] + [
            place
            for place in self.places
            if place in partners and not _leads_to(other.trace, partners[place][0], other.held)
        ]

    def size(self, place: Place) -> int:
        return math.prod(self.trace.at(place).shape)


def _reordered(ours: _Results, theirs: _Results, matched: Matched) -> Iterator[tuple[Place, Place, str]]:
    """The results of A for which every result of B with the same elements has them in a different order."""
    for place in ours.places:
        number = matched.a.made.get(place)
        same = [each for each in theirs.places if number is not None and matched.b.made.get(each) == number]
        if same and all(_is_reordered(ours.trace.at(place), theirs.trace.at(each)) for each in same):
            name = ours.trace.nodes[place[0]].op.op_name
            yield place, same[0], f"a result has the same elements in a different order: the output of {name}"


def _replaced(ours: _Results, theirs: _Results, pairs: Collection[Pair]) -> Iterator[tuple[Place, Place, str]]:
    """The results that only A has, each with a result of the same size that only B has."""
    lost_b = theirs.lost({pair.b: pair.a for pair in pairs}, ours)
    for place in sorted(ours.lost({pair.a: pair.b for pair in pairs}, theirs)):
        alike = [each for each in lost_b if theirs.size(each) == ours.size(place)]
        # Values such as ones are in many tensors, and rounding in a narrow type may hide which ones are the same, so they are in no pair.
        same = next((each for each in alike if not _is_far(ours, place, theirs, each)), None)
        if same is not None:
            lost_b.remove(same)
        elif alike:
            what = f"a result of {size:,} elements" if (size := ours.size(place)) > 1 else "a number"
            yield place, alike[0], f"{what} that is not a result of the other program"


def _is_far(ours: _Results, place: Place, theirs: _Results, other: Place) -> bool:
    """Whether two results differ by more than rounding, or cannot be compared."""
    return not is_near(ours.trace, place, theirs.trace, other)


def is_near(a: Trace, one: Place, b: Trace, other: Place) -> bool:
    """Whether an output of A and one of B are equal but for the rounding on the way to them."""
    off = distance(a.at(one), b.at(other))
    return off is not None and off <= RESULT.of(_rounding(a, one[0], b, other[0]))


def _rounding(a: Trace, here: int, b: Trace, there: int) -> float:
    """The rounding in the narrowest type that both programs have on the way to these operators."""
    ways = _way(a, here), _way(b, there)
    return min(max(node.rounding for node in way) for way in ways)


def _way(trace: Trace, index: int) -> Iterable[Node]:
    """An operator and those that it depends on; for the call of a compiled function, the operators inside."""
    node = trace.nodes[index]
    if node.op.kernel == CALL:
        return (each for each in trace.nodes if each.op.graph_id == node.op.graph_id)
    return (trace.nodes[each] for each in trace.with_ancestors([index]))


def _is_reordered(one: TensorRecord, other: TensorRecord) -> bool:
    """Whether two tensors with the same elements differ, in the same shape, by more than matched values may: their order differs."""
    return one.shape == other.shape and epsilon_of(one.dtype) > 0 and (distance(one, other) or 0.0) > WITHIN


def _leads_to(trace: Trace, index: int, ends: Collection[Place]) -> bool:
    """Whether a node is one of these results, or reaches one through operators that only move or cast."""

    def movers(node: int) -> Iterator[int]:
        return (each for each in trace.readers(node) if trace.nodes[each].operator_class in ("moves", "casts"))

    return not reachable([index], movers).isdisjoint(made for end in ends for made in (end[0], _made_by(trace, end)))
