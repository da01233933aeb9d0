"""Finds results of a step that differ between the runs although no operator explains it. The verdict is then never benign.

A result leaves the step or lasts, and depends on data or parameters: outputs that no operator reads, numbers that the program reads, losses, and the last
writes to memory from before the step. Results are compared as recorded. A result that differs by more than rounding is reported with the first operator
before it where the runs diverge.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np

from opdump.comparison.accuracy import DIVERGENCE, RESULT, distance, record_difference
from opdump.comparison.alignment import Alignment
from opdump.comparison.arguments import accepted_rounding, differing, told_of
from opdump.comparison.differences import (
    apart,
    coarsest,
    differ_only_in_digests,
    epsilon_of,
    has_elements,
    in_roundings,
    numbers_of,
    unshaped_difference,
)
from opdump.comparison.end_state import read_as_number
from opdump.comparison.execution import recorded
from opdump.comparison.kernel_accuracy import JudgedGraphs
from opdump.comparison.nodes import Kind, Node, Place, Suspect, may_leave_results
from opdump.comparison.results import Results, is_given_to_writer, is_of_graph, results
from opdump.comparison.trace import Trace
from opdump.records import IO, TensorRecord

Spread = Callable[[AbstractSet[int], AbstractSet[int], float], tuple[Mapping[Place, float], Mapping[Place, float]]]
"""The effect of rounding on the outputs of these nodes of A and of B, as root mean square; the last argument bounds the unit of rounding."""

_TIMES_SPREAD: Final = 16.0
"""A kernel may round this many times worse than the rounding of its output elements."""


def no_spread(*_: object) -> tuple[Mapping[Place, float], Mapping[Place, float]]:
    """For runs whose operators cannot be run again: the effect of rounding is unknown."""
    return {}, {}


def unexplained(
    a: Trace, b: Trace, alignment: Alignment, spread: Spread = no_spread, judged: JudgedGraphs | None = None
) -> list[Suspect]:
    """At most one suspect: the operator where the runs diverge on the way to a result that differs. Results in `judged` are left out."""
    return _Unexplained(a, b, alignment, spread, judged or JudgedGraphs()).found()


def unexplained_by_statistics(a: Trace, b: Trace, alignment: Alignment) -> list[Suspect]:
    """At most one suspect: the operator where the runs diverge on the way to a result that differs only in its digest, or to a number read from
    memory that no operator wrote. In training, only digests of results that last count.
    """
    return _Unexplained(a, b, alignment, no_spread, JudgedGraphs()).found_by_statistics()


def agree(a: Trace, b: Trace, alignment: Alignment, spread: Spread, judged: JudgedGraphs) -> bool:
    """Whether the runs have corresponding results or `judged` graphs, and no results that differ."""
    found = _Unexplained(a, b, alignment, spread, judged)
    return not found.found() and (found.has_common or bool(judged.pairs))


class _Unexplained:
    def __init__(self, a: Trace, b: Trace, alignment: Alignment, spread: Spread, judged: JudgedGraphs) -> None:
        self.a, self.b, self.alignment, self._spread, self._judged = a, b, alignment, spread, judged
        self._ways = _Ways(a, b, alignment)
        self.has_common = False
        """Whether any results of the runs correspond; set by `found`."""
        self._found_again = False
        self._trains = not all(may_leave_results(node) for node in (*a.nodes, *b.nodes))
        self._tells_shapes = not any(node.op.kernel.startswith("aten::") for node in (*a.nodes, *b.nodes))
        self._updates = _updates_variables(a) and _updates_variables(b)

    def found(self) -> list[Suspect]:
        pairs, alone_a, alone_b = self._pairs()
        self.has_common = bool(pairs) or self._found_again
        far = self._without_order_of_threads([each for each in pairs if self._far(*each)])
        if self._trains:
            # The batch may have a different order: whether that matters shows in the trained parameters, which JAX does not write but return.
            written = set(results(self.b).written)
            far = [
                each
                for each in far
                if each[1] in written or self.b.phase_of(each[1]) == "optimizer" or not self._is_reordered(*each)
            ]
        far = self._beyond_spread(far) if far else []
        if far:
            return [self._parting(*min(far, key=lambda each: each[1]))]
        if alone_a and alone_b:
            return [self._parting(alone_a[0], alone_b[0])]
        return []

    def _beyond_spread(self, pairs: list[tuple[Place, Place]]) -> list[tuple[Place, Place]]:
        """The pairs that rounding does not explain."""
        nodes_a, nodes_b = {one for (one, _), _ in pairs}, {other for _, (other, _) in pairs}
        spread_a, spread_b = self._spread(nodes_a, nodes_b, self._ways.most)
        return [
            (one, other)
            for one, other in pairs
            if not self._is_spread(one, other, (spread_a.get(one, 0.0), spread_b.get(other, 0.0)))
        ]

    def found_by_statistics(self) -> list[Suspect]:
        pairs, _, _ = self._pairs()
        far = [each for each in pairs if _differ_only_in_digests(*self._records(*each))]
        if self._trains:
            written = set(results(self.b).written)
            far = [each for each in far if each[1] in written]
        elif not far:
            numbers = [each for each in pairs if each[1][1] < 0 and read_as_number(self.b.nodes[each[1][0]])]
            far = self._without_order_of_threads([each for each in numbers if self._far(*each)])
        return [self._parting(*min(far, key=lambda each: each[1]))] if far else []

    def _pairs(self) -> tuple[list[tuple[Place, Place]], list[Place], list[Place]]:
        """The pairs of corresponding results, and the results of A and of B without a counterpart."""
        results_a = results(self.a).without(self._judged.of_a, self._judged.left_a)
        results_b = results(self.b).without(self._judged.of_b, self._judged.left_b)
        if self._trains and len(results_a.given) != len(results_b.given):
            # The losses are of parts of a batch: compare the trained parameters only.
            results_a, results_b = replace(results_a, given=()), replace(results_b, given=())
        pairs, doubtful, alone_a, alone_b = self._pairs_of_operators(results_a, results_b)
        if self._trains:
            # Each program may keep other states and gradients: only trained parameters count, also those that only differ in their order.
            return [*pairs, *self._reordered(alone_a, alone_b)], [], []
        again = self._pair_nearest(alone_a, alone_b, lambda one, other: not self._far(one, other))
        self._found_again = bool(again)
        # Each call of a function writes the same variables: pair the remaining writes with the nearest ones.
        ours = {one for one, _ in doubtful}.union(_floats(self.a, _writes(self.a, alone_a)))
        theirs = {other for _, other in doubtful}.union(_floats(self.b, _writes(self.b, alone_b)))
        left_a, left_b = [each for each in alone_a if each in ours], sorted(theirs.intersection(alone_b))
        written = self._pair_nearest(left_a, left_b, self._are_comparable, same_type=True)
        for one, other in written:
            alone_a.remove(one)
            alone_b.remove(other)
        writes_a, writes_b = _writes(self.a, alone_a), _writes(self.b, alone_b)
        # Inputs of different write operators are not comparable: one takes a gradient and a rate, another their product.
        are_told = self._updates and not _floats(self.a, writes_a) and not _floats(self.b, writes_b)
        alone_a, alone_b = (
            [each for each in alone if each not in writes]
            for alone, writes in ((alone_a, writes_a), (alone_b, writes_b))
        )
        others = self._pair_nearest(alone_a, alone_b, self._are_comparable, same_type=are_told)
        if are_told:
            # A program without functions computes gradients of constants too, which nothing reads.
            alone_a = alone_b = []
        return [*pairs, *written, *others], alone_a, alone_b

    def _pairs_of_operators(
        self, results_a: Results, results_b: Results
    ) -> tuple[list[tuple[Place, Place]], list[tuple[Place, Place]], list[Place], list[Place]]:
        """The certain and the doubtful pairs of results of matched operators, and the results of A and of B that are in no certain pair."""
        pairs: list[tuple[Place, Place]] = []
        doubtful: list[tuple[Place, Place]] = []
        left_b = dict.fromkeys(results_b.all())
        alone_a: list[Place] = []
        for place in results_a.all():
            partner = (self.alignment.b_of.get(place[0], -1), place[1])
            if partner not in left_b:
                alone_a.append(place)
            elif not self._trains and self._may_be_another(place) and self._far(place, partner):
                # Operators of a function do not name the variables that they write, an `Identity` returns any value, and training may compute
                # its metrics more often in one mode, so these results are paired by value.
                doubtful.append((place, partner))
                alone_a.append(place)
            else:
                pairs.append((place, partner))
                del left_b[partner]
        return pairs, doubtful, alone_a, list(left_b)

    def _may_be_another(self, place: Place) -> bool:
        """Whether the matched operator may return another result than this one of A, because its name and type do not identify the value."""
        node = self.a.nodes[place[0]]
        hands_on = is_of_graph(node) and node.operator_class == "moves" and not self._have_same_names
        return self._updates or hands_on or is_given_to_writer(self.a, place)

    @cached_property
    def _have_same_names(self) -> bool:
        """Whether most operators of the smaller run have the name of one in the other. In two modes of a program, names are made differently."""
        names = [{node.op.op_name for node in trace.nodes} for trace in (self.a, self.b)]
        return 2 * len(names[0] & names[1]) > min(map(len, names))

    def _pair_nearest(
        self,
        ours: list[Place],
        theirs: list[Place],
        accepts: Callable[[Place, Place], bool],
        *,
        same_type: bool = False,
    ) -> list[tuple[Place, Place]]:
        """Pair each result of A with the nearest one of B if `accepts` is true for them, and remove both from the lists."""
        found: list[tuple[Place, Place]] = []
        for place in list(ours):
            near = self._nearest(place, theirs, same_type=same_type)
            if near is not None and accepts(place, near):
                found.append((place, near))
                ours.remove(place)
                theirs.remove(near)
        return found

    def _are_comparable(self, one: Place, other: Place) -> bool:
        return math.isfinite(self._distance(one, other))

    def _nearest(self, place: Place, others: Sequence[Place], *, same_type: bool = False) -> Place | None:
        """The result of B that is nearest to one of A. Inputs of operators are compared only with inputs, and outputs with outputs."""
        computed = self.a.computing(place[0]).bare_type
        alike = (
            other
            for other in others
            if (other[1] < 0) == (place[1] < 0) and (not same_type or self.b.computing(other[0]).bare_type == computed)
        )
        return min(alike, key=lambda other: self._apart(place, other), default=None)

    def _apart(self, one: Place, other: Place) -> float:
        """The approximate distance of two results, from their statistics if possible, because reading elements takes time."""
        found = apart(*self._records(one, other))
        return self._distance(one, other) if found is None else found

    def _records(self, one: Place, other: Place) -> tuple[TensorRecord, TensorRecord]:
        return self.a.at(one), self.b.at(other)

    def _distance(self, one: Place, other: Place) -> float:
        found = distance(*self._records(one, other))
        return math.inf if found is None else found

    def _far(self, one: Place, other: Place) -> bool:
        """Whether two results differ by more than accumulated rounding."""
        if self._has_other_shape(one, other):
            return True
        records = self._records(one, other)
        found = distance(*records)
        if not found:
            return _differ_only_in_digests(*records)
        epsilon = self._ways.epsilon(one, other)
        if not epsilon:
            return True
        return found > RESULT.of(epsilon)

    def _has_other_shape(self, one: Place, other: Place) -> bool:
        """Whether two outputs have different shapes. False for PyTorch: its last views are unknown, and so are the shapes of results."""
        first, second = self._records(one, other)
        return first.shape != second.shape and min(one[1], other[1]) >= 0 and self._tells_shapes

    def _without_order_of_threads(self, pairs: list[tuple[Place, Place]]) -> list[tuple[Place, Place]]:
        """The pairs, without results that threads produced in both runs in a different order: no program fixes the order of its threads."""
        of_threads = [
            (one, other)
            for one, other in pairs
            if _is_of_thread(self.a.nodes[one[0]]) and _is_of_thread(self.b.nodes[other[0]])
        ]
        if len(of_threads) < 2:
            return pairs
        left_b: defaultdict[Hashable, list[Place]] = defaultdict(list)
        for _, other in of_threads:
            left_b[_held(self.b, other)].append(other)
        left_a: list[Place] = []
        for one, _ in of_threads:
            same = left_b[_held(self.a, one)]
            if same:
                same.pop()
            else:
                left_a.append(one)
        left = zip(left_a, sorted(place for places in left_b.values() for place in places), strict=True)
        return sorted([*set(pairs).difference(of_threads), *left])

    def _reordered(self, ours: Sequence[Place], theirs: Sequence[Place]) -> Iterator[tuple[Place, Place]]:
        """The results of A's optimizer that B's optimizer has only with the same elements in another order."""
        ours, theirs = (
            [place for place in places if place[1] >= 0 and trace.phase_of(place) == "optimizer"]
            for trace, places in ((self.a, ours), (self.b, theirs))
        )
        for one in ours:
            near = [
                each
                for each in theirs
                if not self._has_other_shape(one, each) and self._have_equal_statistics(one, each)
            ]
            alike = [each for each in near if self._is_reordered(one, each)]
            if alike and all(self._far(one, other) for other in alike):
                yield one, alike[0]

    def _have_equal_statistics(self, one: Place, other: Place) -> bool:
        """Whether the statistics of two results agree, whatever the order of the elements; quicker than sorting these."""
        return self._apart(one, other) <= RESULT.of(self._ways.epsilon(one, other))

    def _is_reordered(self, one: Place, other: Place) -> bool:
        """Whether two results are close once the elements of each are sorted, or differ only in digests."""
        if _differ_only_in_digests(*self._records(one, other)):
            return True
        first, second = (recorded(record) for record in self._records(one, other))
        if first is None or second is None or first.size < 2:
            return False
        found = unshaped_difference(np.sort(first, axis=None), np.sort(second, axis=None))
        return found.relative <= RESULT.of(self._ways.epsilon(one, other))

    def _is_spread(self, one: Place, other: Place, spread: tuple[float, float]) -> bool:
        """Whether rounding can explain the distance of two results. `spread` is how far it moves each. An infinite spread counts only if rounding moves
        the result of the other run as well.
        """
        moved = max(spread) if math.isfinite(max(spread)) or min(spread) > 0 else 0.0
        records = self._records(one, other)
        if not moved or self._has_other_shape(one, other) or not all(epsilon_of(record.dtype) for record in records):
            return False
        off = record_difference(*records)
        return off is not None and math.isfinite(off.absolute) and off.absolute <= _TIMES_SPREAD * moved

    def _parting(self, one: Place, other: Place) -> Suspect:
        """The first operator on the way to two results where the runs diverge."""
        off = None if self._has_other_shape(one, other) else distance(*self._records(one, other))
        is_by_digest = _differ_only_in_digests(*self._records(one, other))
        how_far = "has the same statistics and a different digest" if is_by_digest else f"differs{_by(off)}"
        result = self.b.nodes[other[0]].op.op_name
        for index in sorted(self.b.with_ancestors([other[0]])):
            partner = self.alignment.a_of.get(index)
            slots = () if partner is None else self.a.nodes[partner].outputs.keys() & self.b.nodes[index].outputs.keys()
            for slot in sorted(slots):
                assert partner is not None
                place = (partner, slot), (index, slot)
                here, epsilon = self._ways.apart(*place), self._ways.epsilon(*place)
                if here > DIVERGENCE * epsilon or (is_by_digest and _differ_only_in_digests(*self._records(*place))):
                    before, node = self.a.nodes[partner], self.b.nodes[index]
                    reached = f"the result {result} {how_far}"
                    changes = told_of(differing(before, node))
                    kind: Kind = "argument" if changes else "result"
                    what = f"{changes or 'no earlier difference explains it'}; {reached}"
                    return Suspect(kind, before, node, "output", slot, in_roundings(here, epsilon), what)
        what = f"a result of the step that {how_far}"
        io: IO = "output" if other[1] >= 0 else "input"
        slot = other[1] if other[1] >= 0 else ~other[1]
        score = in_roundings(math.inf if off is None else off, self._ways.epsilon(one, other))
        return Suspect("result", self.a.nodes[one[0]], self.b.nodes[other[0]], io, slot, score, what)


def _is_of_thread(node: Node) -> bool:
    """Whether a thread of the program ran the node: no frame of its stack is at module level, where every program starts. That frame need not be the
    outermost one, because a test runner, for example, calls the program from functions.
    """
    return bool(node.op.stack) and all(frame.function not in {"", "<module>"} for frame in node.op.stack)


def _held(trace: Trace, place: Place) -> Hashable:
    """The operator, its line of code and the values of a result."""
    node, record = trace.nodes[place[0]], trace.at(place)
    frame = node.op.stack[0]
    values = record.numpy().tobytes() if has_elements(record) else numbers_of(record)
    return node.bare_type, frame.function, frame.code, record.dtype, record.shape, values


def _by(off: float | None) -> str:
    return " in shape" if off is None or not math.isfinite(off) else f" by {off:.2g} of its size"


def _differ_only_in_digests(one: TensorRecord, other: TensorRecord) -> bool:
    return not (has_elements(one) and has_elements(other)) and differ_only_in_digests(one, other)


def _floats(trace: Trace, places: Sequence[Place]) -> list[Place]:
    return [place for place in places if "float" in trace.at(place).dtype]


def _writes(trace: Trace, places: Iterable[Place]) -> list[Place]:
    return [place for place in places if is_given_to_writer(trace, place)]


def _updates_variables(trace: Trace) -> bool:
    """Whether the step writes floats to variables that are computed from variables, as in training."""
    makers = {
        trace.nodes[index].makers[~slot][0]
        for index, slot in _floats(trace, results(trace).written)
        if slot < 0 and ~slot in trace.nodes[index].makers
    }
    nodes = (trace.nodes[index] for index in trace.with_ancestors(makers))
    return any(node.outputs and not node.inputs and is_of_graph(node) for node in nodes)


class _Ways:
    """The coarsest rounding on the way to each output, as far as the runs differ there."""

    def __init__(self, a: Trace, b: Trace, alignment: Alignment) -> None:
        self.a, self.b, self.alignment = a, b, alignment
        self._apart: dict[tuple[Place, Place], float] = {}

    def apart(self, one: Place, other: Place) -> float:
        """The distance of two outputs; 0 if it is unknown."""
        if (one, other) not in self._apart:
            self._apart[one, other] = distance(self.a.at(one), self.b.at(other)) or 0.0
        return self._apart[one, other]

    def epsilon(self, one: Place, other: Place) -> float:
        """The coarsest rounding on the way to two outputs."""
        own = coarsest((self.a.at(one), self.b.at(other)))
        return min(max(own, self._of_a[one[0]], self._of_b[other[0]]), self.most)

    @cached_property
    def most(self) -> float:
        """The coarsest rounding that the programs chose, and not just a single operator in one of them."""
        return accepted_rounding(self.a, self.b, self.alignment)

    @cached_property
    def _of_a(self) -> list[float]:
        return self._coarsest(self.a, self.alignment.b_of, self.apart)

    @cached_property
    def _of_b(self) -> list[float]:
        return self._coarsest(self.b, self.alignment.a_of, lambda other, one: self.apart(one, other))

    def _coarsest(
        self, trace: Trace, matched: Mapping[int, int], apart_of: Callable[[Place, Place], float]
    ) -> list[float]:
        other = self.b if trace is self.a else self.a
        found: list[float] = []
        for node in trace.nodes:
            coarsest = max((found[maker] for maker, _ in node.makers.values() if maker < node.index), default=0.0)
            partner = matched.get(node.index)
            for slot, record in node.outputs.items():
                epsilon = epsilon_of(record.dtype)
                if epsilon > coarsest and (
                    partner is None
                    or slot not in other.nodes[partner].outputs
                    or other.nodes[partner].outputs[slot].dtype != record.dtype
                    or apart_of((node.index, slot), (partner, slot))
                ):
                    coarsest = epsilon
            found.append(coarsest)
        return found
