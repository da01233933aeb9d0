"""Finds the values at the end of a step that the other run lacks, and the operators where they begin, by statistics only.

A tensor may be whole in one run and in pieces in the other (q, k and v in one matrix). One of the pieces has the maximum of the whole, and
one the minimum; their sizes, sums and sums of squares add up to those of the whole.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Final, Literal

import numpy as np

from opdump.checks.operator_classes import reads_variable, writes_variable
from opdump.comparison.accuracy import RESULT
from opdump.comparison.alignment import Alignment
from opdump.comparison.arguments import accepted_rounding, differing, does_the_same
from opdump.comparison.differences import apart, epsilon_of, has_statistics
from opdump.comparison.nodes import Node, Place, place_in_list, reachable
from opdump.comparison.step_statistics import (
    OF_LISTS,
    PRODUCTS,
    Floats,
    Places,
    ValueIndex,
    inputs_of,
    is_fused,
    norm_of,
    rows_apart,
    size_of,
)
from opdump.comparison.trace import Trace
from opdump.op_types import bare_name
from opdump.records import StatisticValue, TensorRecord

_OF_SQUARES: Final = 4.0
"""Relative error of a square, printed with six digits, in units of the relative error of its root."""
_NEEDED: Final = ("max", "min", "avg", "l2norm")
_MOST_TRIED: Final = 4096
"""Maximum number of combinations of pieces that are tried for a whole."""


def joined(
    a: Iterable[TensorRecord], b: Iterable[TensorRecord], tolerance: float
) -> tuple[list[TensorRecord], list[TensorRecord]]:
    """For each run: its wholes that the other has in pieces, and its pieces that the other has as a whole."""
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
    """The tensors of a run that may be pieces of tensors of the other run."""

    def __init__(self, records: Iterable[TensorRecord], tolerance: float) -> None:
        self._tolerance = tolerance
        by_numbers = {(_size(each), *_numbers(each)): each for each in records if _can_be_told(each)}
        self.distinct: Collection[TensorRecord] = by_numbers.values()
        """One tensor for each combination of size and statistics."""
        by_size: dict[int, list[TensorRecord]] = defaultdict(list)
        for each in self.distinct:
            by_size[_size(each)].append(each)
        self._by_size = {
            size: {name: _Sorted(found, name) for name in ("max", "min", "l2norm")} for size, found in by_size.items()
        }

    def of(self, whole: TensorRecord) -> list[TensorRecord]:
        """Two to four pieces that make up a tensor; empty if there are none, or if all its elements are equal."""
        if whole.statistics["max"] == whole.statistics["min"]:
            return []
        room = self._tolerance * size_of(whole)
        top, bottom = float(whole.statistics["max"]), float(whole.statistics["min"])
        # In a long loop, thousands of tensors of one size may have the same maximum or minimum, so smaller ones are looked up by size.
        smaller = [of_size for size, of_size in self._by_size.items() if size < _size(whole)]
        highest = [each for of_size in smaller for each in of_size["max"].near(top, room)]
        tried = 0
        for high in highest:
            for low in (each for of_size in smaller for each in of_size["min"].near(bottom, room)):
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
        """The pieces, completed by none, one or two others that fit by size and norm."""
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
            for one in others["l2norm"].records:
                rest = left - float(one.statistics["l2norm"]) ** 2
                if _size(one) >= size or rest < -room:
                    break
                if float(one.statistics["max"]) <= top and float(one.statistics["min"]) >= bottom:
                    for last in self._with_square(size - _size(one), rest, room):
                        yield [*begun, one, last]

    def _with_square(self, size: int, square: float, room: float) -> Iterator[TensorRecord]:
        """Tensors of this size with this sum of squares."""
        found = self._by_size.get(size)
        if found is not None and square + room >= 0:
            low, high = math.sqrt(max(0.0, square - room)), math.sqrt(square + room)
            yield from found["l2norm"].near((low + high) / 2, (high - low) / 2)


class _Sorted:
    """Tensors, sorted by one of their statistics."""

    def __init__(self, records: Iterable[TensorRecord], name: str) -> None:
        self.records = sorted(records, key=lambda each: float(each.statistics[name]))
        self._keys = [float(each.statistics[name]) for each in self.records]

    def near(self, value: float, room: float) -> list[TensorRecord]:
        return self.records[bisect_left(self._keys, value - room) : bisect_right(self._keys, value + room)]


def _can_be_told(record: TensorRecord) -> bool:
    """Whether the tensor is not boolean and has all needed statistics, each finite."""
    if record.dtype == "bool" or not has_statistics(record) or not all(each in record.statistics for each in _NEEDED):
        return False
    return all(map(math.isfinite, _numbers(record)))


def _make_up(whole: TensorRecord, parts: list[TensorRecord], tolerance: float) -> bool:
    square = sum(float(each.statistics["l2norm"]) ** 2 for each in parts)
    total = sum(float(each.statistics["avg"]) * _size(each) for each in parts)
    size, expected = _size(whole), float(whole.statistics["l2norm"]) ** 2
    room = tolerance * size_of(whole)
    return (
        abs(square - expected) <= _OF_SQUARES * tolerance * expected
        and abs(total / size - float(whole.statistics["avg"])) <= room
    )


def _numbers(record: TensorRecord) -> tuple[float, ...]:
    return tuple(float(record.statistics[name]) for name in _NEEDED)


def _size(record: TensorRecord) -> int:
    return math.prod(record.shape)


# Compares what two runs leave, even if it is split into different tensors: q, k and v in one matrix or in three.

_MOST_PARTS: Final = 4
_MOST_COMBINATIONS: Final = 20_000
"""If N parts have more combinations than this, N or more parts are not tried."""
_MOST_WHOLES: Final = 96
"""Of each run, at most this many tensors are tried as wholes and as parts."""

End = tuple[Place, TensorRecord, bool]
"""An output that a run leaves at the end of a step, and whether it is noise."""
Ends = list[End]


def without_parts(a: Ends, b: Ends, tolerance: float) -> tuple[list[Place], list[Place]]:
    """The ends that are not noise, and that the other run lacks even if they are split differently (q, k and v in one matrix)."""
    a, b = _without_same_totals(a, b, tolerance)
    used_a: set[Place] = set()
    used_b: set[Place] = set()
    for wholes, parts, used_wholes, used_parts in ((b, a, used_b, used_a), (a, b, used_a, used_b)):
        for place, record, _ in wholes[:_MOST_WHOLES]:
            whole = place, record, False
            found = _parts_of(whole, [each for each in parts[:_MOST_WHOLES] if each[0] not in used_parts], tolerance)
            if found and place not in used_wholes:
                used_wholes.add(place)
                used_parts.update(found)
    a, b = _without_same_totals(
        [each for each in a if each[0] not in used_a], [each for each in b if each[0] not in used_b], tolerance
    )
    return [place for place, _, is_noise in a if not is_noise], [place for place, _, is_noise in b if not is_noise]


def _without_same_totals(a: Ends, b: Ends, tolerance: float) -> tuple[Ends, Ends]:
    """Removes the ends of each type of operator, or all ends if none is noise, that have the same total size and sum of squares."""
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


def _have_same_total(a: Sequence[End], b: Sequence[End], tolerance: float) -> bool:
    """Whether both have the same number of elements, sum and sum of squares. Of noise, only the magnitude is known; a missing mean is not compared."""
    size, other_size = (sum(math.prod(record.shape) for _, record, _ in ends) for ends in (a, b))
    if size != other_size:
        return False
    total_a, total_b = (sum(norm_of(record) ** 2 for _, record, _ in ends) for ends in (a, b))
    noise = sum(norm_of(record) ** 2 for _, record, is_noise in (*a, *b) if is_noise)
    if not abs(total_a - total_b) <= _OF_SQUARES * tolerance * total_a + 2 * noise:
        return False
    sum_a, sum_b = (sum(map(_sum_of, ends)) for ends in (a, b))
    return not abs(sum_a - sum_b) > tolerance * math.sqrt(size * total_a) + 2 * math.sqrt(size * noise)


def _sum_of(end: End) -> float:
    """The sum of the elements; 0 for noise, and NaN if the mean is unknown."""
    _, record, is_noise = end
    return 0.0 if is_noise else float(record.statistics.get("avg", math.nan)) * math.prod(record.shape)


def _parts_of(whole: End, candidates: Ends, tolerance: float) -> list[Place]:
    """Tensors that together have the elements of a whole. Of noise, only the magnitude is known."""
    size = math.prod(whole[1].shape)
    top, bottom = float(whole[1].statistics["max"]), float(whole[1].statistics["min"])
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
            if _have_same_total([whole], chosen, tolerance):
                return [place for place, _, _ in chosen]
    return []


# Operators that amplify rounding more than the statistics of their inputs suggest.

GROWTH: Final = 32.0
"""An operator amplifies a difference of its inputs at most this many times."""
_NOTHING: Final = 1e-4
"""A divisor below this share of the root mean square is close to zero."""
_DIVISORS: Final = MappingProxyType({"RealDiv": 1, "Addcdiv": 2})
"""The position of the divisor among the inputs, by concept."""
_PARAMETERS: Final = "self["
_SQUARES: Final = frozenset({"exp_avg_sqs", "state_sums"})
"""Arguments of fused optimizers: the parameters, and the running squares; updates are divided by the roots of these."""
_SIGN: Final = "Sign"


def makes_much_of_nothing(node: Node, slot: int) -> bool:
    """Whether the operator divides by values close to zero, or uses only signs: an optimizer then turns rounding into full steps."""
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
    """Whether a fused optimizer updates a parameter by dividing by the roots of squares, some of which are close to zero."""
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
    """How far an output may be off if the statistics of its inputs are off by `drift`, all of it in a few elements.

    Statistics of many elements hide a difference in one of them (a unit that is active in only one run). A sum of a few elements shows it.
    """
    return GROWTH * drift * math.sqrt(max(1.0, _summands(node, slot)))


def _summands(node: Node, slot: int) -> float:
    """The number of input elements that each output element is a sum of."""
    sizes = [math.prod(node.inputs[each].shape) for each in inputs_of(node, slot)]
    size = math.prod(node.outputs[slot].shape)
    if not size or not sizes:
        return 1.0
    if not node.concepts.isdisjoint(PRODUCTS):
        return math.sqrt(math.prod(sizes[-2:]) / size)
    return max(sizes) / size


# Traces the end values that only one run has back to the operators where they begin, by statistics only. The other run has a value if any
# of its tensors has the same statistics. Different computations with the same end values are therefore not reported.

State = Literal["known", "constant", "noise", "unknown"]

_BASE: Final = 2e-5
"""Rounding in float32 changes statistics by less than this share of the root mean square, unless values cancel."""
_ROUNDINGS: Final = 16.0
"""The same for narrower types, in units of their rounding."""
_CANCELS: Final = 1e-5
"""A sum below this share of its summands is a remainder of cancellation."""
_MOST: Final = 1e-3
"""Values further apart than this are different, however far apart the inputs are."""
_COARSE_GROWTH: Final = 8.0
"""The same for runs in narrow types, as a multiple of the tolerance of one operator."""
_SHOWN: Final = 2
"""A fault shows within this many steps; a difference that appears later is accumulated rounding, as between training runs."""
_DIVIDING_UPDATES: Final = frozenset({"addcdiv", "foreach_addcdiv", "fused_adam", "fused_adamw", "fused_adagrad"})
"""Operators with which optimizers apply a gradient that is divided by its own size."""

_SCALES: Final = frozenset({"Mul", "RealDiv"})
_ARRANGES: Final = frozenset({"cat", "stack", "copy"})


@dataclass(frozen=True, slots=True)
class Lost:
    """The nodes of a run on the paths to ends that the other run lacks, and the origins of these paths."""

    nodes: frozenset[int] = frozenset()
    origins: Mapping[int, float] = field(default_factory=dict)
    """The nodes where paths begin, with the share of the lost ends that follow from each; 1 if a training loss does."""
    is_certain: bool = False
    """Whether the other run lacks some of the ends even in pieces."""
    given: frozenset[int] = frozenset()
    """The origins that read a value that no recorded operator made and the other run lacks."""
    came_from: frozenset[Place] = frozenset()
    """Outputs of the previous step from which these paths start."""


Key = tuple[int, float, tuple[StatisticValue, ...]]


@dataclass(frozen=True, slots=True)
class Made:
    """A value of an earlier step that the other run lacks, or has only within a wider tolerance."""

    by: Place | None
    """Its maker in the previous step; None if it is from an earlier one."""
    state: State
    drift: float
    """The distance of a known value to that in the other run."""


Left = Mapping[Key, Made]
"""Values of earlier steps, by size and statistics."""


class StepValues:
    """The values of both runs in a step, each compared with the values of the other run."""

    def __init__(self, a: Trace, b: Trace, alignment: Alignment, before: StepValues | None = None) -> None:
        self._alignment: Alignment = alignment
        self._base: float
        self._has_fused: bool
        self._certain: tuple[set[int], set[int]]
        """The operators of A and of B whose partners are certain."""
        if before is not None and before._alignment is alignment:  # a repeated step
            self._base, self._has_fused, self._certain = before._base, before._has_fused, before._certain
        else:
            self._base = _base_of(a, b, alignment)
            self._has_fused = any(is_fused(node) for trace in (a, b) for node in trace.pattern)
            certain = {here for here, kind in alignment.kinds.items() if kind in ("name", "by hand")}
            self._certain = certain, {alignment.b_of[here] for here in certain}
        self._steps_off: int = before._steps_off + 1 if before is not None and before.a.leaves_other_bits() else 0
        """The number of steps directly before this one that all left different bits."""
        self._follows_rounding: bool = before is not None and (before._follows_rounding or before.a.has_rounding)
        self._left: tuple[Left, Left] = ({}, {}) if before is None else (before.a.remembered(), before.b.remembered())
        self.a: _Side
        self.b: _Side
        self.a, self.b = self._sides(a, b, (), ())

    def _sides(
        self, a: Trace, b: Trace, pieces_a: Collection[TensorRecord], pieces_b: Collection[TensorRecord]
    ) -> tuple[_Side, _Side]:
        """Both runs. The pieces of each are known too, because the other run has them split differently."""
        went_apart = self._steps_off >= _SHOWN
        first = _Side(a, b, pieces_a, self._alignment.b_of, self._certain[0], self._base, self._left[0], went_apart)
        second = _Side(b, a, pieces_b, self._alignment.a_of, self._certain[1], self._base, self._left[1], went_apart)
        if self._has_fused:
            self._share_noise(first, second)
        return first, second

    def _share_noise(self, first: _Side, second: _Side) -> None:
        """If what an optimizer wrote is noise in one run, it is noise in both: only the run without a fused optimizer has the intermediate
        values that show it.
        """
        updates = second.updates()
        for storage, place in first.updates().items():
            there = updates.get(self._alignment.storages.get(storage, -1))
            if there is not None and "noise" in (first.state(place), second.state(there)):
                first.take_for_noise(place)
                second.take_for_noise(there)

    def results_apart(self, *, also_written: bool) -> list[Place]:
        """Outputs of B that no operator reads, or with `also_written` all ends, that differ from A by more than the rounding of a first step.

        Noise is left out. Empty if values of the step before differ, however little: rounding grows from step to step.
        """
        if self._left != ({}, {}) or self._follows_rounding:
            return []
        most = max(RESULT.of(epsilon_of("float32")), self._base if self._base > _BASE else 0.0)
        return self.b.further_than(most, self.b.ends() if also_written else self.b.unread())

    def spread(
        self, nodes_a: Collection[int], nodes_b: Collection[int], _: float
    ) -> tuple[Mapping[Place, float], Mapping[Place, float]]:
        """How far rounding moves the inputs and outputs of these nodes of each run, as a root mean square; infinite for noise.

        For runs whose operators cannot be run again. Inputs are keyed by the complement of their slot.
        """
        return self.a.spread(nodes_a), self.b.spread(nodes_b)

    def lost(self) -> tuple[Lost, Lost]:
        """The values that only one of the runs has at the end of the step."""
        if self.a.has_all_known and self.b.has_all_known:
            return Lost(), Lost()
        return self._traced(self.a.ends(), self.b.ends())

    def lost_later(self, later: tuple[Lost, Lost]) -> tuple[Lost, Lost]:
        """The values of this step that lead to what is lost in the next; empty unless the other run lacks some even in pieces."""
        lost = self._traced(later[0].came_from, later[1].came_from)
        return lost if any(each.is_certain for each in lost) else (Lost(), Lost())

    def _traced(self, ends_a: Collection[Place], ends_b: Collection[Place]) -> tuple[Lost, Lost]:
        lost_a, lost_b = without_parts(self.a.of(ends_a), self.b.of(ends_b), self._base)
        if not lost_a and not lost_b:
            return Lost(), Lost()
        unread_a, unread_b = without_parts(self.a.of(self.a.unread()), self.b.of(self.b.unread()), self._base)
        # Pieces do not decide whether anything is lost: if one is found and the next is noise, the rest would not add up.
        pieces = joined(records_of(self.a.trace), records_of(self.b.trace), self._base)
        a, b = self._sides(self.a.trace, self.b.trace, *pieces)
        return a.traced(lost_a, unread_a), b.traced(lost_b, unread_b)


def _base_of(a: Trace, b: Trace, alignment: Alignment) -> float:
    """How far rounding may move the statistics of these steps."""
    usual = max(a.rows.usual_rounding, b.rows.usual_rounding)
    return max(_BASE, _ROUNDINGS * min(usual, accepted_rounding(a, b, alignment))) if usual else _BASE


def records_of(trace: Trace) -> Iterator[TensorRecord]:
    for node in trace.nodes:
        yield from node.inputs.values()
        yield from node.outputs.values()
    yield from trace.finals.values()


class _Side:
    """One run, compared with the values of the other.

    An output that agrees with that of the matched operator is known. An operator is followed only if one of its outputs does not agree or is
    a remainder of cancellation, or if one of its inputs is not known or is noise.
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
        """The distance of each output to that of the matched operator; infinite beyond rounding."""
        shares = self._rows.shares_left(self._columns.norms, self._columns.told)
        self._shares: list[float] = shares.tolist()
        """The size of each output, relative to its summands."""
        cancels = shares <= max(_CANCELS, base / 2)
        self._cancels: set[int] = set(np.flatnonzero(cancels).tolist())
        """Rows of outputs that are remainders of cancellation."""
        self._followed: dict[Place, State] = {}
        """The states of the outputs of the nodes that were followed."""
        self._drifts: dict[Place, float] = {}
        """The distance of a known output to its counterpart; for other outputs, the largest drift of their inputs."""
        self._frail: set[Place] = set()
        """Remainders of cancellation, and what was computed only from noise: equal in both runs only by chance."""
        self._changed: set[Place] = set()
        """Outputs that differ from that of the matched operator, even if the other run has the value elsewhere."""
        self._read: dict[Place, State] = {}
        self._left = left
        self._went_apart = went_apart
        self._seen: dict[Place, Place] = {}
        """For inputs without a known maker: the earlier output of the step with the same statistics."""
        self._given: set[int] = set()
        """Nodes that read a value that no operator made and the other run lacks."""
        self._came_from: dict[Place, Place] = {}
        """The makers, in the previous step, of inputs that the other run lacks."""
        odd = self._columns.told[outputs] & (np.isinf(near) | cancels)
        waiting = sorted({self._rows.outputs[row][0] for row in np.flatnonzero(odd).tolist()} | self._readers_of_left())
        self._follow(waiting)

    @cached_property
    def _values(self) -> ValueIndex:
        return ValueIndex([*records_of(self._other), *self._pieces], self._most)

    def state(self, place: Place) -> State | None:
        """The state of an output; None if it has no statistics."""
        found = self._followed.get(place)
        if found is None:
            row = self._rows.of_output.get(place)
            found = "known" if row is not None and self._told[row] else None
        return found

    def remembered(self) -> Left:
        """The values of this step and earlier ones that the other run lacks, or has only within a wider tolerance."""
        found: dict[Key, Made] = {key: replace(made, by=None) for key, made in self._left.items()}
        for place, of_output in self._followed.items():
            state: State = "noise" if place in self._frail else of_output
            drift = self._drifts[place] if state == "known" else 0.0
            if (state != "known" or drift > self._base) and has_statistics(self.trace.at(place)):
                found[_key(self.trace.at(place))] = Made(place, state, drift)
        return found

    def updates(self) -> Mapping[int, Place]:
        """The outputs that the optimizer leaves, by storage."""
        return {
            memory.storage: (index, slot)
            for index, slot in self._rows.written(self._columns.told)
            if self.trace.nodes[index].op.phase == "optimizer"
            and (memory := self.trace.nodes[index].outputs[slot].memory) is not None
        }

    def take_for_noise(self, place: Place) -> None:
        """Marks an output that the other run lacks as noise."""
        if self._followed.get(place) == "unknown":
            self._followed[place] = "noise"

    @property
    def has_all_known(self) -> bool:
        """Whether the other run has every output, and none of them is noise."""
        return all(state in ("known", "constant") for state in self._followed.values())

    @property
    def has_rounding(self) -> bool:
        """Whether any output differs from that of the matched operator within rounding."""
        return any(0 < distance < math.inf for distance in self._near)

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
        """Nodes that read a value of an earlier step that the other run lacks."""
        if not self._left:
            return set()
        leaves = self._rows.leaves
        is_like = np.isin(self._columns.norms[leaves], np.array([norm for _, norm, _ in self._left], np.float64))
        is_like &= self._columns.told[leaves]
        places = (self._rows.inputs[row - len(self._rows.outputs)] for row in leaves[is_like].tolist())
        return {index for index, slot in places if _key(self.trace.nodes[index].inputs[slot]) in self._left}

    def _follow(self, waiting: list[int]) -> None:
        """Follows nodes in order, and then the readers of their outputs that are frail, changed or not known."""
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
                states = {state for state, _ in made_of}
                if "noise" in states and all(
                    read[each][0] in ("noise", "constant") or (read[each][0] == "known" and _scales(node, each))
                    for each in slots
                ):
                    self._frail.add((node.index, slot))
                self._judge(node, slot, states, max((far for _, far in made_of), default=0.0))
            else:
                self._judge_without_statistics(node, slot, read)

    def _judge_without_statistics(self, node: Node, slot: int, read: Mapping[int, tuple[State, float]]) -> None:
        """A sequence, for example, of which no statistics are recorded, is unknown if an input is."""
        if node.outputs[slot].skip == "opaque" and any(read[each][0] == "unknown" for each in inputs_of(node, slot)):
            self._followed[node.index, slot] = "unknown"

    def _assigned(self, node: Node, record: TensorRecord) -> list[tuple[State, float]]:
        """The states of earlier writes to variables of this shape, if any is noise and none is unknown; otherwise empty. TensorFlow dumps do not
        record which variable a node reads.
        """
        written = [
            (self._read.get((index, slot)) or self.state(maker) or "known", self._drift(maker))
            for index, slot, maker in self._writes
            if index < node.index and self.trace.nodes[index].inputs[slot].shape == record.shape
        ]
        states = {state for state, _ in written}
        return written if "noise" in states and "unknown" not in states else []

    @cached_property
    def _writes(self) -> list[tuple[int, int, Place]]:
        """The inputs that are written to variables, with their makers."""
        return [
            (node.index, slot, maker)
            for node in self.trace.nodes
            if not node.outputs and writes_variable(node.op.op_type)
            for slot, maker in node.makers.items()
        ]

    def _judge(self, node: Node, slot: int, states: Collection[State], drift: float) -> None:
        """Sets the state of an output from the states and the largest drift of its inputs."""
        place, record = (node.index, slot), node.outputs[slot]
        distance, is_changed = self._distance(node, slot, record, drift)
        is_zero = distance == 0 and norm_of(record) == 0  # in both runs, so that nothing is left of the rounding
        cancels = not is_zero and self._rows.of_output[place] in self._cancels
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
        """Whether rounding explains the distance of an output to the other run.

        Allowed are the rounding of its summands, if most of them cancel, and, if earlier steps already differ, the growth of that difference
        in one operator.
        """
        of_summands = self._base / _ROUNDINGS / self._shares[self._rows.of_output[node.index, slot]]
        of_elements = single_elements(node, slot, min(drift, _MOST)) if self._went_apart else 0.0
        reach = max(of_summands, of_elements)
        return reach > self._tolerance(drift) and self._partner_distance(node, slot, reach) <= reach

    def _partner_distance(self, node: Node, slot: int, reach: float) -> float:
        """The distance of an output to that of the matched operator or, without one, to the nearest value within reach."""
        partner = self._matched.get(node.index)
        after = None if partner is None else self._other.nodes[partner].outputs.get(slot)
        distance = None if after is None or not has_statistics(after) else apart(node.outputs[slot], after)
        return self._values.distance(node.outputs[slot], reach) if distance is None else distance

    def _tolerance(self, drift: float) -> float:
        return max(self._base, min(GROWTH * drift, self._most))

    def _distance(self, node: Node, slot: int, record: TensorRecord, drift: float) -> tuple[float, bool]:
        """The distance to the value in the other run, and whether the output of the matched operator differs."""
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
        """The state of an input when it was read, and its distance."""
        record, maker = node.inputs[slot], node.makers.get(slot)
        if not has_statistics(record):
            return self._state_without_statistics(maker), 0.0
        if maker in self._changed:
            return self._followed[maker], self._drifts[maker]
        distance = self._values.distance(record)
        made = self._left.get(_key(record)) if maker is None and self._left else None
        drift = self._drift(maker) if maker is not None else 0.0 if made is None else made.drift
        if distance <= self._tolerance(drift):
            is_frail = maker in self._frail or (made is not None and made.state == "noise")
            return ("noise" if is_frail else "constant" if _is_uniform(record) else "known"), distance
        if maker is None:
            return self._seen_before(node, slot, record, made)
        made_state = self.state(maker)
        return ("unknown" if made_state in ("known", None) else made_state), drift

    def _state_without_statistics(self, maker: Place | None) -> State:
        is_unknown = maker is not None and self._followed.get(maker) == "unknown"
        return "unknown" if is_unknown else "constant"

    def _drift(self, place: Place) -> float:
        """The drift of an output; 0 if it is not compared."""
        found = self._drifts.get(place)
        if found is None:
            row = self._rows.of_output.get(place)
            found = 0.0 if row is None or not self._told[row] else self._near[row]
        return found

    def _seen_before(self, node: Node, slot: int, record: TensorRecord, made: Made | None) -> tuple[State, float]:
        """The state of an input without a known maker: an earlier step may have `made` it, or an earlier output of the step may have the same
        statistics.
        """
        if made is not None and made.state != "known":
            if made.by is not None and made.state == "unknown":
                self._came_from[node.index, slot] = made.by
            return made.state, 0.0
        maker = None if _is_uniform(record) else self._last_with(record, node.index)
        if maker is None:
            if any(state == "noise" for state, _ in self._assigned(node, record)):
                return "noise", 0.0
            self._given.add(node.index)
            return "unknown", 0.0
        self._seen[node.index, slot] = maker
        return self.state(maker) or "unknown", self._drift(maker)

    def _last_with(self, record: TensorRecord, before: int) -> Place | None:
        """The last output before a node with the same statistics as this record."""
        key, count = _key(record), len(self._rows.outputs)
        is_like = self._columns.told[:count] & (self._columns.norms[:count] == norm_of(record))
        for row in np.flatnonzero(is_like)[::-1].tolist():
            index, slot = self._rows.outputs[row]
            if index < before and _key(self.trace.at((index, slot))) == key:
                return index, slot
        return None

    def ends(self) -> list[Place]:
        """What the step leaves: the last writes to earlier memory, and losses; without such writes, all outputs that no operator reads.

        If the runs have different numbers of losses, these are losses of parts of a batch and do not count.
        """
        written, unread = self._rows.written(self._columns.told), self._rows.unread
        if not written:
            return unread
        is_alike = len(unread) == len(self._other.rows.unread)
        return [*written, *(place for place in unread if is_alike and place[0] in self._matched)]

    def given_otherwise(self) -> list[Node]:
        """The followed nodes that lead to a result that the other run lacks: an output that no operator reads, or a node without outputs (the
        program reads a number there).
        """
        users = self.trace.users()
        matters: dict[int, bool] = {}
        # Backwards, so that the readers of an output come first.
        for node in (self.trace.nodes[index] for index in sorted({index for index, _ in self._read}, reverse=True)):
            unknown = [slot for slot in node.outputs if self._followed.get((node.index, slot)) == "unknown"]
            readers = [users.get((node.index, slot), ()) for slot in unknown]
            matters[node.index] = not node.outputs or any(
                not those or any(matters.get(index, False) for index, _ in those) for those in readers
            )
        return [self.trace.nodes[index] for index in sorted(matters) if matters[index]]

    def leaves_other_bits(self) -> bool:
        """Whether the statistics of anything that the step leaves differ in the other run, however little."""
        return any(self._near[self._rows.of_output[place]] for place in self.ends())

    def further_than(self, most: float, places: Iterable[Place]) -> list[Place]:
        """The places whose outputs are further than `most` from those of the matched operators, without noise."""
        found = []
        for place in places:
            index, slot = place
            partner = self._matched.get(index)
            if partner is None or self._near[self._rows.of_output[place]] == 0 or self.state(place) == "noise":
                continue
            node, other = self.trace.nodes[index], self._other.nodes[partner]
            after = other.outputs.get(slot)
            is_far = after is not None and _distance(node.outputs[slot], after) > most
            if is_far and not _only_amplifies(node, other, most):
                found.append(place)
        return found

    def spread(self, nodes: Collection[int]) -> Mapping[Place, float]:
        """How far rounding moves the inputs and outputs of these nodes: infinitely for noise, by the rounding of the statistics for known values
        that depend on noise, and by 0 for others.
        """
        found: dict[Place, float] = {}
        for node in (self.trace.nodes[index] for index in nodes):
            for slot, record in node.outputs.items():
                found[node.index, slot] = self._spread((node.index, slot), record)
            for slot, record in node.inputs.items():
                found[node.index, ~slot] = self._spread(node.makers.get(slot), record)
        return found

    def _spread(self, made: Place | None, record: TensorRecord) -> float:
        state = None if made is None else self.state(made)
        if state == "noise" or (state == "known" and made in self._frail):
            return math.inf
        if state != "known" or made not in self._of_noise:
            return 0.0
        return self._base * size_of(record)

    @cached_property
    def _of_noise(self) -> set[Place]:
        """Outputs of this step that depend on noise."""
        found: set[Place] = set()
        for node in self.trace.nodes:
            for slot in node.outputs:
                place = node.index, slot
                if self.state(place) == "noise" or any(
                    node.makers.get(each) in found for each in inputs_of(node, slot)
                ):
                    found.add(place)
        return found

    def unread(self) -> list[Place]:
        """Losses: outputs that no operator reads."""
        return self._rows.unread

    def of(self, places: Iterable[Place]) -> Ends:
        """Those of the places that are noise or that the other run lacks."""
        return [
            (place, self.trace.at(place), self.state(place) == "noise")
            for place in sorted(places)
            if has_statistics(self.trace.at(place))
            and self._followed.get(place) in ("unknown", "noise")
            and not self._is_elsewhere(place)
        ]

    def met_again(self, lost: Collection[int]) -> Iterator[Node]:
        """Operators whose outputs the other run lacks, although everything computed from them agrees again within rounding."""
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
        """Whether an output of a node is known only within a wider tolerance."""
        places = ((index, slot) for slot in self.trace.nodes[index].outputs)
        return any(self._followed.get(place) == "known" and self._drifts[place] > self._base for place in places)

    def _is_elsewhere(self, place: Place) -> bool:
        """Whether the other run has the value of a changed output elsewhere."""
        return place in self._changed and self._values.distance(self.trace.at(place)) <= self._base

    def traced(self, ends: Collection[Place], unread: Collection[Place]) -> Lost:
        """The paths to these ends, or only to the ends that the other run lacks even in pieces, if there are any."""
        certain, unread = self._unknown(ends), self._unknown(unread)
        ends = certain or ends
        if not ends and not unread:
            return Lost()
        makers = cache(self._lost_makers)
        paths = {end: reachable([end], makers) for end in (*ends, *unread)}
        places = set().union(*paths.values())
        reached: dict[int, set[Place]] = defaultdict(set)
        for end, path in paths.items():
            for index, _ in path:
                reached[index].add(end)
        origins = {place[0] for place in places if not makers(place)}
        inputs = {(index, each) for index, slot in places for each in inputs_of(self.trace.nodes[index], slot)}
        came_from = frozenset(self._came_from[each] for each in inputs & self._came_from.keys())
        most = max(len(reached[index]) for index in origins)
        shares = {
            index: len(reached[index]) / most if reached[index].isdisjoint(unread) else 1.0 for index in sorted(origins)
        }
        return Lost(frozenset(reached), shares, bool(certain), frozenset(self._given & origins), came_from)

    def _unknown(self, places: Iterable[Place]) -> list[Place]:
        return [place for place in places if self.state(place) == "unknown"]

    def _lost_makers(self, place: Place) -> set[Place]:
        """The outputs from which this output was computed and that the other run lacks."""
        index, slot = place
        node = self.trace.nodes[index]
        return {
            maker
            for each in inputs_of(node, slot)
            if (maker := node.makers.get(each) or self._seen.get((index, each))) is not None
            and self._followed.get(maker) == "unknown"
            and self._read[index, each] == "unknown"
        }


def _key(record: TensorRecord) -> Key:
    return math.prod(record.shape), norm_of(record), tuple(record.statistics.values())


def _scales(node: Node, slot: int) -> bool:
    """Whether an input is a single factor or divisor, such as a learning rate: that does not turn noise into a known value."""
    return math.prod(node.inputs[slot].shape) == 1 and not node.concepts.isdisjoint(_SCALES)


def _is_uniform(record: TensorRecord) -> bool:
    return math.prod(record.shape) > 1 and record.statistics.get("max") == record.statistics.get("min")


def only_arranges(node: Node) -> bool:
    """Whether the outputs are the inputs in a different arrangement."""
    return node.moves or node.bare_type in _ARRANGES


def _only_amplifies(node: Node, other: Node, most: float) -> bool:
    """Whether this is the update of an optimizer such as Adam, and its inputs are close to its inputs in the other run.

    It divides a gradient by its own size, so an element that is only rounding moves its parameter by up to the learning rate. The
    gradient is in the states of the optimizer, which are results themselves.
    """
    pairs = ((record, other.inputs.get(slot)) for slot, record in node.inputs.items())
    is_update = node.bare_type.strip("_") in _DIVIDING_UPDATES
    return is_update and all(after is not None and _distance(record, after) <= most for record, after in pairs)


def _distance(record: TensorRecord, other: TensorRecord) -> float:
    """How far apart the statistics of two tensors are, relative to their size; 0 if one has none."""
    return (apart(record, other) or 0.0) if has_statistics(record) and has_statistics(other) else 0.0
