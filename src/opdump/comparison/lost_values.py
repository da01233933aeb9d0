"""Finds tensors that one run has in one piece and the other in several, by their statistics alone: q, k and v in one, the weights of two gates.

Of pieces that make up a whole, one has its max and one its min, and their numbers of elements, sums and sums of squares add up to its own.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Final, Literal

import numpy as np

from opdump.checks.operator_classes import reads_variable, writes_variable
from opdump.comparison.alignment import Alignment
from opdump.comparison.arguments import accepted_rounding, differing, does_the_same
from opdump.comparison.differences import apart, epsilon_of
from opdump.comparison.nodes import Node, place_in_list
from opdump.comparison.step_statistics import (
    OF_LISTS,
    PRODUCTS,
    Floats,
    Places,
    ValueIndex,
    has_statistics,
    inputs_of,
    is_fused,
    norm_of,
    rows_apart,
)
from opdump.comparison.trace import Trace
from opdump.op_types import bare_name
from opdump.records import StatisticValue, TensorRecord

_OF_SQUARES: Final = 4.0
"""Squares, and what six digits leave of them, are off by so many times as much."""
_NEEDED: Final = ("max", "min", "avg", "l2norm")
_MOST_TRIED: Final = 4096
"""Of one whole, so many combinations of pieces are tried at most."""


def joined(
    a: Iterable[TensorRecord], b: Iterable[TensorRecord], tolerance: float
) -> tuple[list[TensorRecord], list[TensorRecord]]:
    """Of each run, the wholes that the other has in pieces, and the pieces of which the other has the whole."""
    pieces_a, pieces_b = _Pieces(a, tolerance), _Pieces(b, tolerance)
    found_a: list[TensorRecord] = []
    found_b: list[TensorRecord] = []
    for wholes, pieces, own, others in ((pieces_b, pieces_a, found_b, found_a), (pieces_a, pieces_b, found_a, found_b)):
        for whole in wholes.distinct:
            parts = pieces.of(whole)
            if parts:
                own.append(whole)
                others.extend(parts)
    return found_a, found_b


class _Pieces:
    """The tensors of a run of which others may be made."""

    def __init__(self, records: Iterable[TensorRecord], tolerance: float) -> None:
        self._tolerance = tolerance
        by_numbers = {(_size(each), *_numbers(each)): each for each in records if _can_be_told(each)}
        self.distinct: Collection[TensorRecord] = by_numbers.values()
        """One of each that differ."""
        self._by_end = {name: _Sorted(self.distinct, name) for name in ("max", "min")}
        by_size: dict[int, list[TensorRecord]] = defaultdict(list)
        for each in self.distinct:
            by_size[_size(each)].append(each)
        self._by_size = {size: _Sorted(found, "l2norm") for size, found in by_size.items()}

    def of(self, whole: TensorRecord) -> list[TensorRecord]:
        """Pieces that make up a tensor, two to four; empty where there are none, and where all its elements are the same."""
        if whole.statistics["max"] == whole.statistics["min"]:
            return []
        room = self._tolerance * _root_mean_square(whole)
        top, bottom = float(whole.statistics["max"]), float(whole.statistics["min"])
        highest = [each for each in self._by_end["max"].near(top, room) if _size(each) < _size(whole)]
        lowest = [each for each in self._by_end["min"].near(bottom, room) if _size(each) < _size(whole)]
        tried = 0
        for high in highest:
            for low in lowest:
                begun = [high] if high is low else [high, low]
                for parts in self._completed(whole, begun, top + room, bottom - room):
                    tried += 1
                    if _make_up(whole, parts, self._tolerance):
                        return parts
                    if tried > _MOST_TRIED:
                        return []
        return []

    def _completed(
        self, whole: TensorRecord, begun: list[TensorRecord], top: float, bottom: float
    ) -> Iterator[list[TensorRecord]]:
        """The pieces with as many others as may be left, none, one or two, that fit by their norms."""
        size = _size(whole) - sum(map(_size, begun))
        if size == 0:
            yield begun
        if size <= 0:
            return
        square = float(whole.statistics["l2norm"]) ** 2
        room = _OF_SQUARES * self._tolerance * square
        left = square - sum(float(each.statistics["l2norm"]) ** 2 for each in begun)
        for last in self._with_square(size, left, room):
            yield [*begun, last]
        for others in self._by_size.values():
            for one in others.records:
                rest = left - float(one.statistics["l2norm"]) ** 2
                if _size(one) >= size or rest < -room:
                    break
                if float(one.statistics["max"]) <= top and float(one.statistics["min"]) >= bottom:
                    for last in self._with_square(size - _size(one), rest, room):
                        yield [*begun, one, last]

    def _with_square(self, size: int, square: float, room: float) -> Iterator[TensorRecord]:
        """Tensors of so many elements with that sum of squares."""
        found = self._by_size.get(size)
        if found is not None and square + room >= 0:
            low, high = math.sqrt(max(0.0, square - room)), math.sqrt(square + room)
            yield from found.near((low + high) / 2, (high - low) / 2)


class _Sorted:
    """Tensors in the order of one of their statistics."""

    def __init__(self, records: Iterable[TensorRecord], name: str) -> None:
        self.records = sorted(records, key=lambda each: float(each.statistics[name]))
        self._keys = [float(each.statistics[name]) for each in self.records]

    def near(self, value: float, room: float) -> list[TensorRecord]:
        return self.records[bisect_left(self._keys, value - room) : bisect_right(self._keys, value + room)]


def _can_be_told(record: TensorRecord) -> bool:
    """Whether it has all statistics, and these say something."""
    if record.dtype == "bool" or not has_statistics(record) or not all(each in record.statistics for each in _NEEDED):
        return False
    return all(map(math.isfinite, _numbers(record)))


def _make_up(whole: TensorRecord, parts: list[TensorRecord], tolerance: float) -> bool:
    square, total = (
        sum(float(each.statistics["l2norm"]) ** 2 for each in parts),
        sum(float(each.statistics["avg"]) * _size(each) for each in parts),
    )
    size, expected = _size(whole), float(whole.statistics["l2norm"]) ** 2
    room = tolerance * _root_mean_square(whole)
    return (
        abs(square - expected) <= _OF_SQUARES * tolerance * expected
        and abs(total / size - float(whole.statistics["avg"])) <= room
    )


def _numbers(record: TensorRecord) -> tuple[float, ...]:
    return tuple(float(record.statistics[name]) for name in _NEEDED)


def _size(record: TensorRecord) -> int:
    return math.prod(record.shape)


def _root_mean_square(record: TensorRecord) -> float:
    return float(record.statistics["l2norm"]) / math.sqrt(_size(record))


# Holds against each other what two runs leave, however it is cut into tensors: q, k and v in one matrix, or in three.

Output = tuple[int, int]
"""A node and a slot of its outputs."""
_MOST_PARTS: Final = 4
_MOST_COMBINATIONS: Final = 20_000
"""Combinations of so many parts, of which there are more, are not tried."""
_MOST_WHOLES: Final = 96
"""Tensors that are parts of others are looked for among so many at most."""

Ends = list[tuple[Output, TensorRecord, bool]]
"""What a run leaves, and whether it is noise."""


def without_parts(a: Ends, b: Ends, tolerance: float) -> tuple[list[Output], list[Output]]:
    """What is no noise, and no part of what the other has: q, k and v in one."""
    a, b = _without_same_totals(a, b, tolerance)
    used_a: set[Output] = set()
    used_b: set[Output] = set()
    for wholes, parts, used_wholes, used_parts in ((b, a, used_b, used_a), (a, b, used_a, used_b)):
        for place, record, _ in wholes[:_MOST_WHOLES]:
            found = _parts_of(record, [each for each in parts[:_MOST_WHOLES] if each[0] not in used_parts], tolerance)
            if found and place not in used_wholes:
                used_wholes.add(place)
                used_parts.update(found)
    a, b = _without_same_totals(
        [each for each in a if each[0] not in used_a], [each for each in b if each[0] not in used_b], tolerance
    )
    return [place for place, _, is_noise in a if not is_noise], [place for place, _, is_noise in b if not is_noise]


def _without_same_totals(a: Ends, b: Ends, tolerance: float) -> tuple[Ends, Ends]:
    """The ends without those of a kind of operator that are the same elements in all, however they are cut into tensors."""
    kinds = {_kind_of(record) for _, record, _ in (*a, *b)}
    same = {
        kind
        for kind in kinds
        if _have_same_total(
            [each for each in a if _kind_of(each[1]) == kind],
            [each for each in b if _kind_of(each[1]) == kind],
            tolerance,
        )
    }
    a, b = ([each for each in ends if _kind_of(each[1]) not in same] for ends in (a, b))
    has_noise = any(is_noise for _, _, is_noise in (*a, *b))
    return ([], []) if not has_noise and _have_same_total(a, b, tolerance) else (a, b)


def _kind_of(record: TensorRecord) -> str:
    return bare_name(record.op.op_type).removeprefix(OF_LISTS)


def _have_same_total(a: Ends, b: Ends, tolerance: float) -> bool:
    """Whether as many elements have the same sum of squares; of noise, only how much there is is known."""
    if sum(math.prod(record.shape) for _, record, _ in a) != sum(math.prod(record.shape) for _, record, _ in b):
        return False
    total_a, total_b = (sum(norm_of(record) ** 2 for _, record, _ in ends) for ends in (a, b))
    noise = sum(norm_of(record) ** 2 for _, record, is_noise in (*a, *b) if is_noise)
    return abs(total_a - total_b) <= _OF_SQUARES * tolerance * total_a + 2 * noise


def _parts_of(whole: TensorRecord, candidates: Ends, tolerance: float) -> list[Output]:
    """Tensors that have together the elements that one has; of what is noise, only how much there is is known."""
    size, square = math.prod(whole.shape), norm_of(whole) ** 2
    top, bottom = float(whole.statistics["max"]), float(whole.statistics["min"])
    room = tolerance * (top - bottom)
    small = [
        (place, record, is_noise)
        for place, record, is_noise in candidates
        if math.prod(record.shape) < size
        and (
            is_noise
            or (float(record.statistics["max"]) <= top + room and float(record.statistics["min"]) >= bottom - room)
        )
    ]
    for count in range(2, _MOST_PARTS + 1):
        if math.comb(len(small), count) > _MOST_COMBINATIONS:
            break
        for chosen in itertools.combinations(small, count):
            if sum(math.prod(record.shape) for _, record, _ in chosen) != size:
                continue
            squares = sum(norm_of(record) ** 2 for _, record, _ in chosen)
            noise = sum(norm_of(record) ** 2 for _, record, is_noise in chosen if is_noise)
            if abs(squares - square) <= _OF_SQUARES * tolerance * square + 2 * noise:
                return [place for place, _, _ in chosen]
    return []


# Operators that make more of rounding than the statistics of what they read let expect.

GROWTH: Final = 32.0
"""One operator makes a difference of its inputs no larger than this many times."""
_NOTHING: Final = 1e-4
"""What is so much smaller than the others is next to nothing."""
_DIVISORS: Final = MappingProxyType({"RealDiv": 1, "Addcdiv": 2})
"""The input that an operator of a concept divides by."""
_PARAMETERS: Final = "self["
_SQUARES: Final = frozenset({"exp_avg_sqs", "state_sums"})
"""Arguments of fused optimizers: the parameters, and the squares that they divide by the roots of."""
_SIGN: Final = "Sign"


def makes_much_of_nothing(node: Node, slot: int) -> bool:
    """Whether some elements are divided by next to nothing, or their sign alone counts: an optimizer makes full steps of what rounding left."""
    if _SIGN in node.concepts:
        return True
    if is_fused(node):
        return _divides_by_next_to_nothing(node, slot)
    slots, place = inputs_of(node, slot), next((_DIVISORS[each] for each in node.concepts if each in _DIVISORS), None)
    divisor = None if place is None or place >= len(slots) else node.inputs[slots[place]]
    if divisor is None or not has_statistics(divisor):
        return False
    least = float(divisor.statistics.get("min", math.inf))
    return 0 <= least * math.sqrt(math.prod(divisor.shape)) <= _NOTHING * norm_of(divisor)


def _divides_by_next_to_nothing(node: Node, slot: int) -> bool:
    """Whether what a fused optimizer gives a parameter is a division by the root of squares of which some are next to nothing."""
    written = node.outputs[slot]
    if not written.argument.startswith(_PARAMETERS):
        return False
    place = place_in_list(written)
    squares = [each for each in node.outputs.values() if each.argument in {f"{name}{place}" for name in _SQUARES}]
    return any(
        has_statistics(each)
        and 0
        <= float(each.statistics.get("min", math.inf))
        <= _NOTHING**2 * float(each.statistics.get("avg", -math.inf))
        for each in squares
    )


def single_elements(node: Node, slot: int, drift: float) -> float:
    """How far an output may be off whose inputs are off by so much, by their statistics, all of it in a few elements.

    Statistics of many elements hide what one of them is off by: a unit of a network that is on in one run alone. A sum of few shows it.
    """
    return GROWTH * drift * math.sqrt(max(1.0, _summands(node, slot)))


def _summands(node: Node, slot: int) -> float:
    """Of how many elements of an input each element of an output is a sum."""
    sizes = [math.prod(node.inputs[each].shape) for each in inputs_of(node, slot)]
    size = math.prod(node.outputs[slot].shape)
    if not size or not sizes:
        return 1.0
    if not node.concepts.isdisjoint(PRODUCTS):
        return math.sqrt(math.prod(sizes[-2:]) / size)
    return max(sizes) / size


# What a step leaves that the other run has nowhere, traced back to where it begins, with statistics alone.
#
# A value counts as had by the other run where some tensor there has the same statistics, whatever it is called and whoever made it. So what one
# program computes in another way, and ends in values that both have, is left alone: only ways that lead to something else at the end of the
# step count, and on these ways the operators that begin them.

State = Literal["known", "constant", "noise", "unknown"]

_BASE: Final = 2e-5
"""Rounding of float32 moves statistics by less than this part of the root mean square, but where they cancel."""
_ROUNDINGS: Final = 16.0
"""The same of narrower types, in units of their rounding."""
_CANCELS: Final = 1e-5
"""Sums that are so much smaller than what they are sums of are what cancellation left."""
_MOST: Final = 1e-3
"""Values that are further apart are not the same, however far their inputs are."""
_COARSE_GROWTH: Final = 8.0
"""The same for runs in narrow types, as a multiple of what one of their operators may be off."""
_SHOWN: Final = 2
"""What a fault leaves shows in so many steps; what only later is far off has grown from rounding, as the runs of a training do."""
_ROUNDINGS_OF_A_STEP: Final = 100.0
"""Units of rounding that come together in the first step, which begins with the same in both runs."""
_SCALES: Final = frozenset({"Mul", "RealDiv"})
_ARRANGES: Final = frozenset({"cat", "stack", "copy"})


@dataclass(frozen=True, slots=True)
class Lost:
    """Of one run: the nodes on ways to what the other does not leave, and those at which the ways begin."""

    nodes: frozenset[int] = frozenset()
    origins: Mapping[int, float] = field(default_factory=dict)
    """With the share of what is lost that follows from each; all where a loss does."""
    is_certain: bool = False
    """Whether the other run has some of what is lost in no pieces either."""
    given: frozenset[int] = frozenset()
    """Of these nodes, those that read what no operator of the run was seen to make."""
    came_from: frozenset[Output] = frozenset()
    """What the step before made and these ways begin with."""


Key = tuple[int, float, tuple[StatisticValue, ...]]


@dataclass(frozen=True, slots=True)
class Made:
    """What a step before left and the other run has not, or not to the last bits."""

    by: Output | None
    """Who made it in the last of the steps; None where a step before that did."""
    state: State
    drift: float
    """How far what is known is from the other run's."""


Left = Mapping[Key, Made]
"""What steps before left, by its statistics."""


class StepValues:
    """The values of both runs in a step, each held against those of the other."""

    def __init__(self, a: Trace, b: Trace, alignment: Alignment, before: StepValues | None = None) -> None:
        self._alignment: Alignment = alignment
        self._base: float = _base_of(a, b, alignment, before)
        self._certain = {here for here, kind in alignment.kinds.items() if kind in ("name", "by hand")}
        self._steps_off: int = before._steps_off + 1 if before is not None and before.a.leaves_other_bits() else 0
        """Of so many steps before this one, each left something else, if only to the last bits."""
        self._left: tuple[Left, Left] = ({}, {}) if before is None else (before.a.remembered(), before.b.remembered())
        self.a: _Side
        self.b: _Side
        self.a, self.b = self._sides(a, b, (), ())

    def _sides(
        self, a: Trace, b: Trace, pieces_a: Collection[TensorRecord], pieces_b: Collection[TensorRecord]
    ) -> tuple[_Side, _Side]:
        """Both runs. Of each the pieces are known as well: the other has them, cut into tensors in another way."""
        certain_b = {self._alignment.b_of[here] for here in self._certain}
        went_apart = self._steps_off >= _SHOWN
        first = _Side(a, b, pieces_a, self._alignment.b_of, self._certain, self._base, self._left[0], went_apart)
        second = _Side(b, a, pieces_b, self._alignment.a_of, certain_b, self._base, self._left[1], went_apart)
        if any(is_fused(node) for trace in (a, b) for node in trace.nodes):
            self._share_noise(first, second)
        return first, second

    def _share_noise(self, first: _Side, second: _Side) -> None:
        """What is noise where a fused optimizer wrote it is noise in the other run, too, which has values on the way to it that the fused optimizer
        does not give.
        """
        updates = second.updates()
        for storage, place in first.updates().items():
            there = updates.get(self._alignment.storages.get(storage, -1))
            if there is not None and "noise" in (first.state(place), second.state(there)):
                first.take_for_noise(place)
                second.take_for_noise(there)

    def results_apart(self, *, also_written: bool) -> list[Output]:
        """Of B, what no operator reads, or also what lasts, and is further from what the same operator gives in A than rounding of the first
        step gets; no noise. Nothing of later steps.
        """
        if self._left != ({}, {}):
            return []
        most = max(_ROUNDINGS_OF_A_STEP * epsilon_of("float32"), self._base if self._base > _BASE else 0.0)
        return self.b.further_than(most, self.b.ends() if also_written else self.b.unread())

    def spread(
        self, nodes_a: Collection[int], nodes_b: Collection[int], _: float
    ) -> tuple[Mapping[Output, float], Mapping[Output, float]]:
        """How far rounding moves what these nodes of either run read and give, by root mean square, where no operator can be run again: infinitely far for
        noise. Inputs have the complement of their slot.
        """
        return self.a.spread(nodes_a), self.b.spread(nodes_b)

    def lost(self) -> tuple[Lost, Lost]:
        """What each run leaves at the end of the step that the other does not."""
        if self.a.has_all_known and self.b.has_all_known:
            return Lost(), Lost()
        return self._traced(self.a.ends(), self.b.ends())

    def lost_later(self, later: tuple[Lost, Lost]) -> tuple[Lost, Lost]:
        """What this step made that leads to what is lost in the next, and the other run has not in pieces either."""
        lost = self._traced(later[0].came_from, later[1].came_from)
        return lost if any(each.is_certain for each in lost) else (Lost(), Lost())

    def _traced(self, ends_a: Collection[Output], ends_b: Collection[Output]) -> tuple[Lost, Lost]:
        lost_a, lost_b = without_parts(self.a.of(ends_a), self.b.of(ends_b), self._base)
        if not lost_a and not lost_b:
            return Lost(), Lost()
        unread_a, unread_b = without_parts(self.a.of(self.a.unread()), self.b.of(self.b.unread()), self._base)
        # Whether anything is lost is not asked of the pieces: where one is found and the next is noise, the rest would not add up.
        pieces = joined(records_of(self.a.trace), records_of(self.b.trace), self._base)
        a, b = self._sides(self.a.trace, self.b.trace, *pieces)
        return a.traced(lost_a, unread_a), b.traced(lost_b, unread_b)


def _base_of(a: Trace, b: Trace, alignment: Alignment, before: StepValues | None) -> float:
    """How far rounding moves statistics of two steps."""
    if before is not None and before._alignment is alignment:
        return before._base
    usual = max(a.rows.usual_rounding, b.rows.usual_rounding)
    return max(_BASE, _ROUNDINGS * min(usual, accepted_rounding(a, b, alignment))) if usual else _BASE


def records_of(trace: Trace) -> Iterator[TensorRecord]:
    for node in trace.nodes:
        yield from node.inputs.values()
        yield from node.outputs.values()
    yield from trace.finals.values()


class _Side:
    """One run, held against the values of the other.

    Where an output is that of the same operator of the other run, it is known, and nothing more is asked: an operator is followed alone
    where one of its outputs is not, or where what it reads is not known, or is noise.
    """

    def __init__(
        self,
        trace: Trace,
        other: Trace,
        pieces: Collection[TensorRecord],
        matched: Mapping[int, int],
        certain: Collection[int],
        base: float,
        left: Left,
        went_apart: bool,
    ) -> None:
        self.trace, self._other, self._matched, self._certain, self._base = trace, other, matched, certain, base
        self._most = max(_MOST, _COARSE_GROWTH * base)
        self._pieces = pieces
        self._rows, self._columns = trace.rows, trace.columns
        outputs = np.arange(len(self._rows.outputs))
        self._told: list[bool] = self._columns.told[outputs].tolist()
        near = self._near_partners(outputs)
        self._near: list[float] = near.tolist()
        """How far each output is from that of the same operator; infinite beyond rounding."""
        shares = self._rows.shares_left(self._columns.norms, self._columns.told)
        self._shares: list[float] = shares.tolist()
        """How large each output is, as a part of its summands."""
        cancels = shares <= max(_CANCELS, base / 2)
        self._cancels: set[int] = set(np.flatnonzero(cancels).tolist())
        """Rows of outputs that are what cancellation left of their summands."""
        self._followed: dict[Output, State] = {}
        """Of the outputs of nodes that were followed."""
        self._drifts: dict[Output, float] = {}
        """How far what is known is from what it is known as; of others, what their inputs are."""
        self._frail: set[Output] = set()
        """What cancellation left, and what was made of that alone: the same in both runs by chance."""
        self._changed: set[Output] = set()
        """What the other run has somewhere, but not where it belongs."""
        self._read: dict[Output, State] = {}
        self._left = left
        self._went_apart = went_apart
        self._seen: dict[Output, Output] = {}
        """Who gave before what an input has, of those that no operator was seen to make."""
        self._given: set[int] = set()
        """Nodes that read what no operator made, and the other run has nowhere."""
        self._came_from: dict[Output, Output] = {}
        """Inputs that the step before made and the other run does not have: who made them there."""
        odd = self._columns.told[outputs] & (np.isinf(near) | cancels)
        waiting = sorted({self._rows.outputs[row][0] for row in np.flatnonzero(odd).tolist()} | self._readers_of_left())
        self._follow(waiting)

    @cached_property
    def _values(self) -> ValueIndex:
        return ValueIndex([*records_of(self._other), *self._pieces], self._most)

    def state(self, place: Output) -> State | None:
        """What is known of an output; None of one without statistics."""
        found = self._followed.get(place)
        if found is None:
            row = self._rows.of_output.get(place)
            found = "known" if row is not None and self._told[row] else None
        return found

    def remembered(self) -> Left:
        """What the other run has not, or not to the last bits, of this step and those before."""
        found: dict[Key, Made] = {key: replace(made, by=None) for key, made in self._left.items()}
        for place, of_output in self._followed.items():
            state: State = "noise" if place in self._frail else of_output
            drift = self._drifts[place] if state == "known" else 0.0
            if state != "known" or drift > self._base:
                found[_key(self.trace.nodes[place[0]].outputs[place[1]])] = Made(place, state, drift)
        return found

    def updates(self) -> Mapping[int, Output]:
        """What the optimizer leaves, by storage."""
        return {
            memory.storage: (index, slot)
            for index, slot in self._rows.written(self._columns.told)
            if self.trace.nodes[index].op.phase == "optimizer"
            and (memory := self.trace.nodes[index].outputs[slot].memory) is not None
        }

    def take_for_noise(self, place: Output) -> None:
        """Takes an output that the other run does not have for noise."""
        if self._followed.get(place) == "unknown":
            self._followed[place] = "noise"

    @property
    def has_all_known(self) -> bool:
        """Whether the other run has every output, and none is noise."""
        return all(state in ("known", "constant") for state in self._followed.values())

    def _near_partners(self, outputs: Places) -> Floats:
        columns, others = self._columns, self._other.columns
        partners = self._rows.partners(self._other.rows, self._matched)
        both = np.flatnonzero(partners >= 0)
        near = np.full(len(outputs), np.inf)
        if len(both):
            there = others.at(partners[both])
            distances = rows_apart(columns.at(both), there)
            is_known = columns.told[both] & there.told & (distances <= self._base)
            near[both[is_known]] = distances[is_known]
        return near

    def _readers_of_left(self) -> set[int]:
        """Nodes that read what a step before left and the other run does not have."""
        if not self._left:
            return set()
        leaves = self._rows.leaves
        is_like = np.isin(self._columns.norms[leaves], np.array([norm for _, norm, _ in self._left], np.float64))
        is_like &= self._columns.told[leaves]
        places = (self._rows.inputs[row - len(self._rows.outputs)] for row in leaves[is_like].tolist())
        return {index for index, slot in places if _key(self.trace.nodes[index].inputs[slot]) in self._left}

    def _follow(self, waiting: list[int]) -> None:
        """Follows nodes, in their order, and what reads what is not known or noise of them."""
        users = self.trace.users()
        queued = set(waiting)
        while waiting:
            node = self.trace.nodes[heappop(waiting)]
            self._judge_node(node)
            for slot in node.outputs:
                place = node.index, slot
                if place in self._frail or place in self._changed or self._followed.get(place, "unknown") != "known":
                    for index, _ in users.get(place, ()):
                        if index not in queued:
                            queued.add(index)
                            heappush(waiting, index)

    def _judge_node(self, node: Node) -> None:
        read = {slot: self._input(node, slot) for slot in node.inputs}
        for slot, (state, _) in read.items():
            self._read[node.index, slot] = state
        for slot, record in node.outputs.items():
            if has_statistics(record):
                slots = inputs_of(node, slot)
                reads_one = not slots and reads_variable(node.op.op_type)
                made_of = self._assigned(node, record) if reads_one else [read[each] for each in slots]
                if any(state == "noise" for state, _ in made_of) and all(
                    state in ("noise", "constant") or (state == "known" and _scales(node, each))
                    for each, (state, _) in read.items()
                    if each in slots
                ):
                    self._frail.add((node.index, slot))
                self._judge(node, slot, {state for state, _ in made_of}, max((far for _, far in made_of), default=0.0))

    def _assigned(self, node: Node, record: TensorRecord) -> list[tuple[State, float]]:
        """What was written before to a variable that a node reads: noise, if any of the writes to variables of its shape is, and none is unknown. Dumps of
        TensorFlow do not say which variable it is.
        """
        written = [
            (self._read.get((index, slot)) or self.state(maker) or "known", self._drift(maker))
            for index, slot, maker in self._writes
            if index < node.index and self.trace.nodes[index].inputs[slot].shape == record.shape
        ]
        states = {state for state, _ in written}
        return written if "noise" in states and "unknown" not in states else []

    @cached_property
    def _writes(self) -> list[tuple[int, int, Output]]:
        """The inputs that are written to variables, with what made them."""
        return [
            (node.index, slot, maker)
            for node in self.trace.nodes
            if not node.outputs and writes_variable(node.op.op_type)
            for slot, maker in node.makers.items()
        ]

    def _judge(self, node: Node, slot: int, states: Collection[State], drift: float) -> None:
        """Says what an output is, of inputs of these states that are so far off."""
        place, record = (node.index, slot), node.outputs[slot]
        cancels = self._rows.of_output[place] in self._cancels
        distance, is_changed = self._distance(node, slot, record, drift)
        if is_changed:
            self._changed.add(place)
        if cancels:
            self._frail.add(place)
        is_near = distance <= self._tolerance(drift)
        is_arranged = node.index not in self._matched and only_arranges(node) and set(states) <= {"known", "constant"}
        is_known = is_near or is_arranged
        is_noise = not is_known and (cancels or self._is_carried_on(node, slot, drift))
        unknown = self._state_of_unknown
        self._followed[place] = "known" if is_known else unknown(node, slot, states, is_noise, is_changed)
        self._drifts[place] = distance if is_near else drift

    def _state_of_unknown(
        self, node: Node, slot: int, states: Collection[State], is_noise: bool, is_changed: bool
    ) -> State:
        record, partner = node.outputs[slot], self._matched.get(node.index)
        is_selector = partner is None and not epsilon_of(record.dtype)
        if is_selector or node.bare_type.endswith("_like") or (not set(states) - {"constant"} and not is_changed):
            return "constant"
        if is_noise:
            return "noise"
        if makes_much_of_nothing(node, slot) and (partner is None or not differing(self._other.nodes[partner], node)):
            return "noise"
        return "noise" if "noise" in states and not set(states) - {"noise", "known", "constant"} else "unknown"

    def _is_carried_on(self, node: Node, slot: int, drift: float) -> bool:
        """Whether an output is no further from the other run's than rounding may take it.

        That is what its summands are rounded by, where they cancel for the most part; and where the runs went apart before, as far as one operator
        takes that.
        """
        of_summands = self._base / _ROUNDINGS / self._shares[self._rows.of_output[node.index, slot]]
        of_elements = single_elements(node, slot, min(drift, _MOST)) if self._went_apart else 0.0
        reach = max(of_summands, of_elements)
        return reach > self._tolerance(drift) and self._partner_distance(node, slot, reach) <= reach

    def _partner_distance(self, node: Node, slot: int, reach: float) -> float:
        """How far an output is from that of the same operator; of one without, how far the nearest value is, of those within reach."""
        partner = self._matched.get(node.index)
        after = None if partner is None else self._other.nodes[partner].outputs.get(slot)
        distance = None if after is None or not has_statistics(after) else apart(node.outputs[slot], after)
        return self._values.distance(node.outputs[slot], reach) if distance is None else distance

    def _tolerance(self, drift: float) -> float:
        return max(self._base, min(GROWTH * drift, self._most))

    def _distance(self, node: Node, slot: int, record: TensorRecord, drift: float) -> tuple[float, bool]:
        """How far the nearest value of the other run is, and whether it should be nearer: that of the same operator."""
        near = self._near[self._rows.of_output[node.index, slot]]
        if near <= self._base:
            return near, False
        partner = self._matched.get(node.index)
        one = None if partner is None else self._other.nodes[partner]
        after = None if one is None else one.outputs.get(slot)
        if one is not None and after is not None and has_statistics(after):
            distance = apart(record, after)
            if distance is not None:
                is_alike = node.index in self._certain or does_the_same(one, node)
                is_off = distance > self._tolerance(drift) and is_alike
                if _is_uniform(record) or is_off:
                    return distance, is_off
                if differing(one, node):
                    return distance, True
        return self._values.distance(record), False

    def _input(self, node: Node, slot: int) -> tuple[State, float]:
        """What is known of an input as it was read, and how far it is off."""
        record, maker = node.inputs[slot], node.makers.get(slot)
        if not has_statistics(record):
            return "constant", 0.0
        if maker in self._changed:
            return self._followed[maker], self._drifts[maker]
        distance = self._values.distance(record)
        made = self._left.get(_key(record)) if maker is None and self._left else None
        drift = self._drift(maker) if maker is not None else 0.0 if made is None else made.drift
        if distance <= self._tolerance(drift):
            is_frail = maker in self._frail or (made is not None and made.state == "noise")
            return ("noise" if is_frail else "constant" if _is_uniform(record) else "known"), distance
        if maker is None:
            if made is None or made.state == "known":
                return self._seen_before(node, slot, record)
            if made.by is not None and made.state == "unknown":
                self._came_from[node.index, slot] = made.by
            return made.state, 0.0
        made_state = self.state(maker)
        return ("unknown" if made_state in ("known", None) else made_state), drift

    def _drift(self, place: Output) -> float:
        """How far off an output is; 0 for one that is not compared."""
        found = self._drifts.get(place)
        if found is None:
            row = self._rows.of_output.get(place)
            found = 0.0 if row is None or not self._told[row] else self._near[row]
        return found

    def _seen_before(self, node: Node, slot: int, record: TensorRecord) -> tuple[State, float]:
        """What is known of an input that no operator was seen to make: an operator of the step may have given just that."""
        maker = None if _is_uniform(record) else self._last_with(record, node.index)
        if maker is None:
            if any(state == "noise" for state, _ in self._assigned(node, record)):
                return "noise", 0.0
            self._given.add(node.index)
            return "unknown", 0.0
        self._seen[node.index, slot] = maker
        return self.state(maker) or "unknown", self._drift(maker)

    def _last_with(self, record: TensorRecord, before: int) -> Output | None:
        """The last output before a node that has the statistics of a record."""
        key, count = _key(record), len(self._rows.outputs)
        is_like = self._columns.told[:count] & (self._columns.norms[:count] == norm_of(record))
        for row in np.flatnonzero(is_like)[::-1].tolist():
            index, slot = self._rows.outputs[row]
            if index < before and _key(self.trace.nodes[index].outputs[slot]) == key:
                return index, slot
        return None

    def ends(self) -> list[Output]:
        """What the step leaves: the last writes to what was there before it, and losses; where nothing is written, all that no operator reads.

        Programs with more or fewer losses have them of parts of a batch.
        """
        written, unread = self._rows.written(self._columns.told), self._rows.unread
        if not written:
            return unread
        is_alike = len(unread) == len(self._other.rows.unread)
        return [*written, *(place for place in unread if is_alike and place[0] in self._matched)]

    def given_otherwise(self) -> list[Node]:
        """Nodes that read what no operator made, or that something else changed since, that the other run has nowhere, and from which a result
        follows that it has nowhere either: an output that no operator reads, or a number that the program reads.
        """
        users = self.trace.users()
        matters: dict[int, bool] = {}
        # What reads an output comes after it.
        for node in (self.trace.nodes[index] for index in sorted({index for index, _ in self._read}, reverse=True)):
            unknown = [slot for slot in node.outputs if self._followed.get((node.index, slot)) == "unknown"]
            readers = [users.get((node.index, slot), ()) for slot in unknown]
            matters[node.index] = not node.outputs or any(
                not those or any(matters.get(index, False) for index, _ in those) for those in readers
            )
        return [self.trace.nodes[index] for index in sorted(matters) if matters[index]]

    def leaves_other_bits(self) -> bool:
        """Whether anything that the step leaves is not the very same in the other run, by its statistics."""
        return any(self._near[self._rows.of_output[place]] for place in self.ends())

    def further_than(self, most: float, places: Iterable[Output]) -> list[Output]:
        """Which of these places is so far from what the same operator gives in the other run; no noise."""
        found = []
        for place in places:
            partner = self._matched.get(place[0])
            record = self.trace.nodes[place[0]].outputs[place[1]]
            after = None if partner is None else self._other.nodes[partner].outputs.get(place[1])
            if after is None or self._near[self._rows.of_output[place]] == 0 or self.state(place) == "noise":
                continue
            distance = apart(record, after) if has_statistics(record) and has_statistics(after) else None
            if distance is not None and distance > most:
                found.append(place)
        return found

    def spread(self, nodes: Collection[int]) -> Mapping[Output, float]:
        """How far rounding moves what these nodes read and give: infinitely far for noise, and within rounding of the statistics for what was made with
        noise and is known all the same.
        """
        found: dict[Output, float] = {}
        for node in (self.trace.nodes[index] for index in nodes):
            for slot, record in node.outputs.items():
                found[node.index, slot] = self._spread((node.index, slot), record)
            for slot, record in node.inputs.items():
                found[node.index, ~slot] = self._spread(node.makers.get(slot), record)
        return found

    def _spread(self, made: Output | None, record: TensorRecord) -> float:
        state = None if made is None else self.state(made)
        if state == "noise" or (state == "known" and made in self._frail):
            return math.inf
        if state != "known" or made not in self._of_noise:
            return 0.0
        return self._base * norm_of(record) / math.sqrt(max(1, math.prod(record.shape)))

    @cached_property
    def _of_noise(self) -> set[Output]:
        """Outputs that noise went into, in this step."""
        found: set[Output] = set()
        for node in self.trace.nodes:
            for slot in node.outputs:
                place = node.index, slot
                if self.state(place) == "noise" or any(
                    node.makers.get(each) in found for each in inputs_of(node, slot)
                ):
                    found.add(place)
        return found

    def unread(self) -> list[Output]:
        """Losses."""
        return self._rows.unread

    def of(self, places: Iterable[Output]) -> Ends:
        """Those of the places that the other run does not have, and those that say nothing."""
        return [
            (place, self.trace.nodes[place[0]].outputs[place[1]], self.state(place) == "noise")
            for place in sorted(places)
            if self._followed.get(place) in ("unknown", "noise") and not self._is_elsewhere(place)
        ]

    def met_again(self, lost: Collection[int]) -> Iterator[Node]:
        """Operators that give what the other run does not have, and all that is made of it comes to the same before long, to rounding."""
        users = self.trace.users()
        apart = set(lost)
        unknown = {index for (index, _), state in self._followed.items() if state == "unknown"}
        for node in (self.trace.nodes[index] for index in sorted(unknown, reverse=True)):
            readers = [index for slot in node.outputs for index, _ in users.get((node.index, slot), ())]
            if node.index in apart or not readers:
                continue
            if any(index in apart or self._is_off(index) for index in readers):
                apart.add(node.index)
            else:
                yield node

    def _is_off(self, index: int) -> bool:
        """Whether a node gives what the other run has by and large alone."""
        places = ((index, slot) for slot in self.trace.nodes[index].outputs)
        return any(self._followed.get(place) == "known" and self._drifts[place] > self._base for place in places)

    def _is_elsewhere(self, place: Output) -> bool:
        """Whether the other run has a value, though from another operator."""
        return (
            place in self._changed and self._values.distance(self.trace.nodes[place[0]].outputs[place[1]]) <= self._base
        )

    def traced(self, ends: Collection[Output], unread: Collection[Output]) -> Lost:
        """The ways that lead to some ends, of those that the other run has in no pieces either if there are such."""
        certain = [end for end in ends if self.state(end) == "unknown"]
        ends = certain or ends
        unread = [end for end in unread if self.state(end) == "unknown"]
        if not ends and not unread:
            return Lost()
        reached: dict[int, set[Output]] = {}
        origins: set[int] = set()
        came_from: set[Output] = set()
        for end in (*ends, *unread):
            waiting, seen = [end], set[Output]()
            while waiting:
                place = waiting.pop()
                if place in seen:
                    continue
                seen.add(place)
                index = place[0]
                reached.setdefault(index, set()).add(end)
                node = self.trace.nodes[index]
                slots = inputs_of(node, place[1])
                makers = {
                    maker
                    for slot in slots
                    if (maker := node.makers.get(slot) or self._seen.get((index, slot))) is not None
                    and self._followed.get(maker) == "unknown"
                    and self._read[index, slot] == "unknown"
                }
                came_from |= {self._came_from[index, slot] for slot in slots if (index, slot) in self._came_from}
                if not makers:
                    origins.add(index)
                waiting.extend(makers)
        losses = set(unread)
        most = max(len(reached[index]) for index in origins)
        shares = {index: 1.0 if reached[index] & losses else len(reached[index]) / most for index in sorted(origins)}
        return Lost(frozenset(reached), shares, bool(certain), frozenset(self._given & origins), frozenset(came_from))


def _key(record: TensorRecord) -> Key:
    return math.prod(record.shape), norm_of(record), tuple(record.statistics.values())


def _scales(node: Node, slot: int) -> bool:
    """Whether an input is one number that the others are multiplied with, or divided by: a rate does not make noise known."""
    return math.prod(node.inputs[slot].shape) == 1 and not node.concepts.isdisjoint(_SCALES)


def _is_uniform(record: TensorRecord) -> bool:
    return math.prod(record.shape) > 1 and record.statistics.get("max") == record.statistics.get("min")


def only_arranges(node: Node) -> bool:
    """Whether what comes out is what goes in, in other places."""
    return node.moves or node.bare_type in _ARRANGES
