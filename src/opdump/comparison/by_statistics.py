"""Names the operators that explain different end values of a step, by statistics only.

An operator that both programs run, with equal inputs and different outputs, is proof. An operator that only one program runs may begin a
different computation of the same result. Code whose values agree again in another layer or step is named last.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from opdump.comparison.alignment import Alignment
from opdump.comparison.arguments import (
    OtherArguments,
    differing,
    narrowed_results,
    other_arguments,
    planted_casts,
    told_of,
)
from opdump.comparison.causes import Reach
from opdump.comparison.differences import apart, has_statistics, same_statistics
from opdump.comparison.integrity import changed_since, shown_data
from opdump.comparison.lost_values import Lost, StepValues, only_arranges
from opdump.comparison.nodes import Kind, Node, Suspect, reachable
from opdump.comparison.trace import Trace, leaf_name, names_a_state
from opdump.comparison.unexplained import Spread
from opdump.doing import note
from opdump.records import TensorRecord

Pair = tuple[Node | None, Node | None]
"""An operator of A and one of B."""
Code = tuple[str, str, str, int]
"""The type of an operator, its phase, and its source line."""
_AGREES: Final = 1e-4
"""Tensors whose statistics are closer than this, relative to the root mean square, count as equal."""
_MOST_REACHED: Final = 0.8
"""An operator that leads to at least this share of the lost values precedes those that lead to less."""


def code_of(node: Node) -> Code:
    """Identifies code that runs in several layers and steps."""
    frame = node.op.stack[0] if node.op.stack else None
    return node.op.op_type, node.op.phase, frame.file if frame else node.module, frame.line if frame else 0


@dataclass(frozen=True, slots=True)
class Origin:
    """A pair of operators where lost values begin."""

    pair: Pair
    reads_given: bool
    """Whether it reads a value that no operator made and the other run lacks."""
    share: float
    """The share of the lost values that follows from it."""
    place: int
    """Its position in the order of B."""


@dataclass(frozen=True, slots=True)
class OriginRanking:
    """Ranks the origins of a step."""

    a: Trace
    b: Trace
    alignment: Alignment
    cleared: tuple[Collection[Code], Collection[Code]] = field(default=((), ()))
    """Code of A and of B whose values agree again elsewhere."""

    def ranked(self, origins: Sequence[Origin]) -> list[Origin]:
        """Proofs first, those that follow from no other proof at the front; then the rest; cleared code last."""
        flow = _Flow(origins, Reach(self.a), Reach(self.b))
        proofs = [each for each in origins if each.reads_given or self._is_aligned(each.pair)]
        cleared = {id(each) for each in origins if each not in proofs and self._is_cleared(each.pair)}
        causes = [each for each in origins if id(each) not in cleared]
        # A different input proves less if it may follow from another origin.
        certain = [each for each in proofs if each.reads_given or not flow.leads_to_odd_inputs(causes, each)]

        def order(origin: Origin) -> tuple[bool, bool, bool, bool, int]:
            is_proof = origin in certain
            follows = flow.leads_to(certain if is_proof else causes, origin)
            is_small = origin.share < _MOST_REACHED
            # Rounding may hide what follows from an operator, so a proof with a small share still counts.
            first, second = (follows, is_small) if is_proof else (is_small, follows)
            return id(origin) in cleared, not is_proof, first, second, origin.place

        return sorted(origins, key=order)

    def _is_aligned(self, pair: Pair) -> bool:
        """Whether the two operators are matched."""
        one, other = pair
        return one is not None and other is not None and self.alignment.b_of.get(one.index) == other.index

    def _is_cleared(self, pair: Pair) -> bool:
        given = [(code_of(node), codes) for node, codes in zip(pair, self.cleared, strict=True) if node is not None]
        return all(code in codes for code, codes in given)


def odd_inputs(one: Node, other: Node) -> Iterator[int]:
    """The inputs whose statistics differ between two operators."""
    for slot, record in other.inputs.items():
        before = one.inputs.get(slot)
        if before is not None and has_statistics(record) and has_statistics(before):
            distance = apart(before, record)
            if distance is not None and distance > _AGREES:
                yield slot


def has_odd_input(one: Node, other: Node) -> bool:
    """Whether the statistics of any input differ between two operators."""
    return next(odd_inputs(one, other), None) is not None


class _Flow:
    """What follows from the origins in each run."""

    def __init__(self, origins: Sequence[Origin], a: Reach, b: Reach) -> None:
        self._reached = {
            id(origin): tuple(
                set() if node is None else reach.of(node.index) for node, reach in zip(origin.pair, (a, b), strict=True)
            )
            for origin in origins
        }

    def leads_to(self, causes: Iterable[Origin], origin: Origin) -> bool:
        """Whether an origin follows from another of the causes."""
        places = [None if node is None else node.index for node in origin.pair]
        return any(
            place in reached
            for cause in causes
            if cause is not origin
            for place, reached in zip(places, self._reached[id(cause)], strict=True)
        )

    def leads_to_odd_inputs(self, causes: Iterable[Origin], origin: Origin) -> bool:
        """Whether a different input of B's operator is an output of another origin, or follows from one."""
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


# Operators that may be the cause at an origin: the reader of a copy, the maker of a different input, an operator that reorders elements, or
# the forward operator of a gradient.

_ARRANGERS: Final = frozenset(
    {"cat", "stack", "roll", "flip", "index", "index_select", "gather", "take", "sort", "permute_copy", "index_put"}
)
"""Operators that select or reorder elements. Statistics do not show the order."""
_MOST_ARRANGERS: Final = 2
_NEAR: Final = 12
"""The search for an operator that reorders elements ends after about this many operators."""


@dataclass(frozen=True)
class Meanings:
    """Finds the operators that an origin may stand for. `cleared` is code of A and of B whose values agree again elsewhere."""

    a: Trace
    b: Trace
    alignment: Alignment
    lost_b: Lost
    cleared: tuple[Collection[Code], Collection[Code]]
    _wired: set[int] = field(default_factory=set)
    """Indices of the operators of B that `_wired_before` has visited."""

    def of(self, pair: Pair) -> Iterator[Pair]:
        """The operators that an origin may stand for, most likely first."""
        one, other = pair
        if other is not None and (other.moves or other.bare_type == "copy"):
            readers = self.b.users().get((other.index, 0), ())
            lost = min((index for index, _ in readers if index in self.lost_b.nodes), default=-1)
            if lost in self.alignment.a_of:
                yield self._aligned(self.b.nodes[lost])
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
        """The unmatched forward operator that a backward operator belongs to, and the unmatched operators that lead to it."""
        sides = ((self.b, self.alignment.a_of, self.cleared[1]), (self.a, self.alignment.b_of, self.cleared[0]))
        for node, (trace, matched, cleared) in zip(reversed(pair), sides, strict=True):
            if node is None or node.op.phase != "backward" or not node.op.forward_op:
                continue
            forward = self._named[trace is self.a].get(node.op.forward_op, ())
            for each in _lone_before(trace, forward, matched, cleared):
                if each.rounding:
                    yield (None, each) if trace is self.b else (each, None)

    @cached_property
    def _named(self) -> tuple[Mapping[str, Sequence[int]], Mapping[str, Sequence[int]]]:
        """The operators of B and of A by their names."""
        found: tuple[defaultdict[str, list[int]], ...] = defaultdict(list), defaultdict(list)
        for names, trace in zip(found, (self.b, self.a), strict=True):
            for node in trace.nodes:
                names[node.op.op_name].append(node.index)
        return found[0], found[1]

    def _wired_before(self, one: Node, other: Node) -> Iterator[Pair]:
        """The matched makers of different inputs, if they have different inputs or arguments themselves; the earliest first.

        A pair is yielded once in a step: a long step has too many paths to follow each of them.
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
            if waiting and (differing(before, after) or has_odd_input(before, after)):
                yield before, after

    def _makers_of_odd(self, one: Node, other: Node) -> Iterator[tuple[Node, Node]]:
        """The matched makers of the inputs whose statistics differ."""
        for slot in odd_inputs(one, other):
            maker_a, maker_b = one.makers.get(slot), other.makers.get(slot)
            if maker_a is not None and maker_b is not None and self.alignment.b_of.get(maker_a[0]) == maker_b[0]:
                yield self.a.nodes[maker_a[0]], self.b.nodes[maker_b[0]]

    def _given_before(self, one: Node, other: Node) -> Iterator[Pair]:
        """The first reader of a different input that no operator made, such as a parameter that changed before the optimizer wrote it."""
        for slot in odd_inputs(one, other):
            read = other.inputs[slot]
            if slot in other.makers or read.memory is None:
                continue
            for index, record in self._odd_reads.get(read.memory.storage, ()):
                if index < other.index and same_statistics(record, read):
                    yield self._aligned(self.b.nodes[index])
                    return

    @cached_property
    def _odd_reads(self) -> Mapping[int, Sequence[tuple[int, TensorRecord]]]:
        """The inputs of operators of B whose statistics differ from those in A, by their storage in execution order."""
        found: defaultdict[int, list[tuple[int, TensorRecord]]] = defaultdict(list)
        for node in self.b.nodes:
            partner, _ = self._aligned(node)
            for slot in () if partner is None else odd_inputs(partner, node):
                memory = node.inputs[slot].memory
                if memory is not None:
                    found[memory.storage].append((node.index, node.inputs[slot]))
        return found

    def _arranged(self, other: Node) -> list[tuple[Node | None, Node]]:
        """The operators that reordered the inputs of an operator, nearest first."""
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
        """The maker of a different input in B, if A reads from another operator and both programs have both makers."""
        for slot in odd_inputs(one, other):
            maker_a, maker_b = one.makers.get(slot), other.makers.get(slot)
            if maker_a is not None and maker_b is not None:
                partner = self.alignment.a_of.get(maker_b[0])
                if partner is not None and partner != maker_a[0] and maker_a[0] in self.alignment.b_of:
                    yield self.a.nodes[partner], self.b.nodes[maker_b[0]]


def is_same_as_told(one: Node, other: Node) -> bool:
    """Whether two operators have the same type, the same arguments, and inputs with the same statistics."""
    return one.bare_type == other.bare_type and not differing(one, other) and not has_odd_input(one, other)


# What statistics can prove. Nothing is run again, so an operator is named if its inputs have the same statistics in both runs, its output has
# not, and the difference lasts to the end of the step. Remainders of cancellation (sums that are mathematically zero) are ignored.


def have_same_phases(a: Trace, b: Trace) -> bool:
    """Whether both steps have operators of the same phases."""
    return {node.op.phase for node in a.nodes} == {node.op.phase for node in b.nodes}


_OTHER_DATA: Final = 1e-9
"""Input data are bit-identical; if only their order differs, the last bits of float64 sums differ."""

Cleared = tuple[frozenset[Code], frozenset[Code]]
"""Cleared code of A and of B."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The suspects, and the step that they belong to."""

    suspects: Sequence[Suspect]
    a: Trace
    b: Trace
    alignment: Alignment
    without_effect: Sequence[OtherArguments] = ()
    """Operators with different arguments, but equal outputs for equal inputs."""


def _with_arguments(found: Sequence[Suspect], told: Sequence[Suspect]) -> list[Suspect]:
    """The suspects, with operators whose different arguments lead to different outputs for equal inputs. These are proven, so they precede
    suspects that run later.
    """
    new = [each for each in told if all(each.place != other.place for other in found)]
    first = min((each.b.index for each in found[:1] if each.b is not None), default=-1)
    before = [each for each in new if each.b is not None and each.b.index < first]
    return [*before, *found, *(each for each in new if each not in before)]


class StatisticsComparison:
    """A step of two runs with statistics only. `before` is the comparison of the previous step."""

    def __init__(self, a: Trace, b: Trace, alignment: Alignment, before: StatisticsComparison | None = None) -> None:
        self.a, self.b, self.alignment, self._before = a, b, alignment, before
        self._values: StepValues = StepValues(a, b, alignment, None if before is None else before._values)
        self._is_first = before is None
        self._cleared_before: Cleared = (
            (frozenset(), frozenset()) if before is None else before._cleared((Lost(), Lost()))
        )

    @property
    def spread(self) -> Spread:
        """How far rounding moves the inputs and outputs of nodes of both runs."""
        return self._values.spread

    def judged(self) -> Judged:
        """The suspects, most likely first: those of the previous step if the lost values begin there."""
        note("looking for the statistics of step", self.a.step, "in the other run")
        lost = self._values.lost()
        before, self._before = self._before, None
        others = list(other_arguments(self.a, self.b, self.alignment))
        same = tuple(each for each in others if not each.differs)
        told = [each.suspect() for each in others if each.differs]
        casts = [
            *planted_casts(self.a, self.alignment.b_of, is_b=False),
            *planted_casts(self.b, self.alignment.a_of, is_b=True),
            *narrowed_results(self.a, self.b, self.alignment),
        ]
        if casts:
            return Judged(_with_arguments(casts, told), self.a, self.b, self.alignment, same)
        if before is not None:
            earlier = before._named(before._values.lost_later(lost))
            if earlier:
                return Judged(earlier, before.a, before.b, before.alignment)
        named = _with_arguments(self._data_first(self._named(lost)), told) or self._results_apart()
        return Judged(named, self.a, self.b, self.alignment, same)

    def _results_apart(self) -> list[Suspect]:
        """If results of the first step differ: the first data that differ, or else the first of these results."""
        if not self._values.results_apart(also_written=True):
            return []
        for index, here in sorted(self.alignment.a_of.items()):
            one, other = self.a.nodes[here], self.b.nodes[index]
            for slot, record in other.inputs.items():
                before = one.inputs.get(slot)
                if slot in other.makers or slot in one.makers or before is None or before.dtype != record.dtype:
                    continue
                if (has_statistics(before) and has_statistics(record)) and (apart(before, record) or 0.0) > _OTHER_DATA:
                    return [_of_data(one, other, slot)]
        results = self._values.results_apart(also_written=False)
        if not results:
            return []
        index, slot = results[0]
        one, other = self.a.nodes[self.alignment.a_of[index]], self.b.nodes[index]
        off = apart(one.outputs[slot], other.outputs[slot])
        what = f"a result of the step differs by {off:.2g} of its size"
        return [Suspect("result", one, other, "output", slot, math.inf, what)]

    def loses_nothing(self) -> bool:
        """Whether both runs leave the same, so that there are no suspects. Does not look at arguments and casts; for steps after the first."""
        if any(each.nodes for each in self._values.lost()) or next(self._other_data(), None) is not None:
            return False
        self._before = None
        return True

    def _cleared(self, lost: tuple[Lost, Lost]) -> Cleared:
        """Code whose values agree again in this step or an earlier one."""
        sides = self._values.a, self._values.b
        found = [
            before | {code_of(node) for node in side.met_again(of_side.nodes)}
            for before, side, of_side in zip(self._cleared_before, sides, lost, strict=True)
        ]
        return found[0], found[1]

    def _named(self, lost: tuple[Lost, Lost]) -> list[Suspect]:
        found: list[Suspect] = []
        lost_b = lost[1]
        origins = [self._origin(pair, *lost) for pair in self._pairs(*lost)]
        cleared = self._cleared(lost)
        ranked = OriginRanking(self.a, self.b, self.alignment, cleared).ranked(origins)
        meanings = Meanings(self.a, self.b, self.alignment, lost_b, cleared)
        meant = [*self._overwritten(lost_b), *(each for origin in ranked for each in meanings.of(origin.pair))]
        telling = [pair for pair in meant if _may_change_values(pair, lost_b)]
        for one, other in telling or meant:
            suspect = self._suspect(one, other)
            if all(suspect.place != each.place or suspect.kind != each.kind for each in found):
                found.append(suspect)
        # The maker of a tensor that B reads elsewhere may produce the same in both runs: then it is no difference.
        return [each for each in found if each.kind != "kernel" or not _gives_the_same(each)] or found

    def _data_first(self, named: list[Suspect]) -> list[Suspect]:
        """The suspects; if the first is only a different input or data, all data that differ come first."""
        if named and named[0].kind not in ("input", "data"):
            return named
        data = list(self._other_data())
        told = {suspect.place for suspect in data}
        rest = [each for each in named if each.place not in told and (each.kind != "input" or not data)]
        return [*data, *rest]

    def _other_data(self) -> Iterator[Suspect]:
        """Input data that differ and lead to a different result. Only if all operators match: other programs may split data differently."""
        if not len(self.a.nodes) == len(self.b.nodes) == len(self.alignment.a_of):
            return
        for other in self._values.b.given_otherwise():
            partner = self.alignment.a_of.get(other.index)
            if partner is not None and not other.overwrites(0):
                suspect = self._data(self.a.nodes[partner], other)
                # States of earlier steps are compared by the values from which they were computed.
                if suspect is not None and (suspect.kind == "data" or self._is_first):
                    yield suspect

    def _data(self, one: Node, other: Node) -> Suspect | None:
        """The suspect for a different input that no operator made, or that something other than an operator changed in both runs."""
        for slot in odd_inputs(one, other):
            if slot not in other.makers and slot not in one.makers:
                return _of_data(one, other, slot)
            if _is_overwritten(self.a, one, slot) and _is_overwritten(self.b, other, slot):
                made_by = self.b.nodes[other.makers[slot][0]].op.op_name
                what = f"the statistics of the data differ; {changed_since(made_by)}"
                return Suspect("data", one, other, "input", slot, math.inf, what)
        return None

    def _overwritten(self, lost: Lost) -> Iterator[Pair]:
        """The first lost operators that read memory that something other than an operator overwrote in B only."""
        seen = set()
        for index in sorted(lost.nodes):
            other = self.b.nodes[index]
            partner = self.alignment.a_of.get(index)
            one = None if partner is None else self.a.nodes[partner]
            slot = self._overwritten_slot(one, other)
            if slot is not None and other.makers[slot] not in seen:
                seen.add(other.makers[slot])
                yield one, other

    def _origin(self, pair: Pair, lost_a: Lost, lost_b: Lost) -> Origin:
        shares = [
            lost.origins[node.index]
            for lost, node in zip((lost_a, lost_b), pair, strict=True)
            if node is not None and node.index in lost.origins
        ]
        reads_given = any(
            node is not None and node.index in lost.given for lost, node in zip((lost_a, lost_b), pair, strict=True)
        )
        return Origin(pair, reads_given, max(shares, default=0.0), self._place(*pair))

    def _pairs(self, lost_a: Lost, lost_b: Lost) -> list[Pair]:
        """The operators where lost values begin, paired between the programs if they correspond."""
        b_of, a_of = self.alignment.b_of, self.alignment.a_of
        alone_a, alone_b = _unmatched(self.a, lost_a.origins, b_of), _unmatched(self.b, lost_b.origins, a_of)
        free_b = _unmatched(self.b, range(len(self.b.nodes)), a_of)
        pairs: list[Pair] = []
        taken: set[Node] = set()
        for is_like, others in (
            (_is_of_same_type, alone_b),
            (_is_of_same_type, free_b),
            (_gives_same_sizes, alone_b),
        ):
            for one in list(alone_a):
                partner = self._nearest(one, [each for each in others if each not in taken and is_like(one, each)])
                if partner is not None:
                    pairs.append((one, partner))
                    alone_a.remove(one)
                    taken.add(partner)
        pairs += [(one, None) for one in alone_a]
        pairs += [(None, other) for other in alone_b if other not in taken]
        matched = lost_b.origins.keys() & a_of.keys()
        matched |= {b_of[index] for index in lost_a.origins if index in b_of}
        pairs += [(self.a.nodes[a_of[index]], self.b.nodes[index]) for index in sorted(matched)]
        return pairs

    def _nearest(self, one: Node, others: list[Node]) -> Node | None:
        place = self._place(one, None)
        return min(others, key=lambda other: abs(other.index - place), default=None)

    def _place(self, one: Node | None, other: Node | None) -> int:
        """The position of a pair in the order of B."""
        if other is not None:
            return other.index
        assert one is not None
        return max((there for here, there in self.alignment.b_of.items() if here < one.index), default=0)

    def _suspect(self, one: Node | None, other: Node | None) -> Suspect:
        if other is None:
            return Suspect("missing", one, None, "output", 0, math.inf, "its output is not in B")
        overwritten = self._overwritten_slot(one, other)
        if overwritten is not None:
            made_by = self.b.nodes[other.makers[overwritten][0]].op.op_name
            what = f"the statistics differ from those of the output of {made_by}, and no operator has written to this memory since"
            return Suspect("memory", one, other, "input", overwritten, math.inf, what)
        if one is None:
            return Suspect("extra", None, other, "output", 0, math.inf, "its output is not in A")
        if one.bare_type != other.bare_type:
            what = f"its output is not in A, which runs {one.op.op_type} here"
            return Suspect("operator", one, other, "output", 0, math.inf, what)
        arguments = differing(one, other)
        if arguments:
            return Suspect("argument", one, other, "output", 0, math.inf, told_of(arguments))
        data = self._data(one, other)
        if data is not None:
            return data
        for slot in odd_inputs(one, other):
            return Suspect("input", one, other, "input", slot, math.inf, "the statistics of the input differ")
        if any(record.skip == "opaque" for record in other.inputs.values()):
            return Suspect(
                "result", one, other, "output", 0, math.inf, "its output is not in A; an input was not recorded"
            )
        return Suspect("kernel", one, other, "output", 0, math.inf, "inputs have the same statistics")

    def _overwritten_slot(self, one: Node | None, other: Node) -> int | None:
        """An input that something other than an operator overwrote in B only."""
        slots = (slot for slot in other.makers if _is_overwritten(self.b, other, slot))
        return next((slot for slot in slots if one is None or not _is_overwritten(self.a, one, slot)), None)


def _gives_the_same(suspect: Suspect) -> bool:
    """Whether all outputs have the same statistics in both runs, and the operator does not reorder elements."""
    one, other = suspect.a, suspect.b
    assert one is not None
    assert other is not None
    return other.bare_type not in _ARRANGERS and all(
        slot in one.outputs and same_statistics(one.outputs[slot], record) for slot, record in other.outputs.items()
    )


def _lone_before(trace: Trace, nodes: Iterable[int], matched: Container[int], cleared: Container[Code]) -> list[Node]:
    """The nodes without a counterpart and those that lead to them, through such nodes only."""

    def is_lone(index: int) -> bool:
        return index not in matched and code_of(trace.nodes[index]) not in cleared

    def makers(index: int) -> Iterator[int]:
        return (maker for maker, _ in trace.nodes[index].makers.values() if is_lone(maker))

    return [trace.nodes[index] for index in sorted(reachable(filter(is_lone, nodes), makers))]


def _unmatched(trace: Trace, indices: Iterable[int], matched: Container[int]) -> list[Node]:
    return [trace.nodes[index] for index in indices if index not in matched]


def _of_data(one: Node, other: Node, slot: int) -> Suspect:
    record = other.inputs[slot]
    kind: Kind = "parameter" if names_a_state(leaf_name(record)) else "data"
    what = f"the statistics of the data differ; {shown_data(record)}, first read here"
    return Suspect(kind, one, other, "input", slot, math.inf, what)


def _is_overwritten(trace: Trace, node: Node, slot: int) -> bool:
    """Whether an input has different statistics than its maker wrote to the same memory, although no write since was seen."""
    if slot not in node.makers:
        return False
    maker, output = node.makers[slot]
    made, read = trace.nodes[maker].outputs.get(output), node.inputs[slot]
    if made is None or not has_statistics(made) or math.prod(made.shape) != math.prod(read.shape):
        return False
    return made.memory is not None and made.memory == read.memory and not same_statistics(made, read)


def _is_of_same_type(one: Node, other: Node) -> bool:
    return one.bare_type == other.bare_type and one.op.phase == other.op.phase


def _gives_same_sizes(one: Node, other: Node) -> bool:
    return one.sizes == other.sizes and one.op.phase == other.op.phase


def _may_change_values(pair: tuple[Node | None, Node | None], lost: Lost) -> bool:
    """False for an operator that only B has and that only rearranges values."""
    one, other = pair
    return one is not None or other is None or other.index in lost.given or not only_arranges(other)
