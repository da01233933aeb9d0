"""Matches the tensors of two runs by their values, whatever operators produced them.

Frameworks have few names and operators in common: one folds a batch norm into a convolution, another splits a GELU. But they produce many of
the same values, up to layout and rounding.
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.differences import (
    Array,
    TensorLayout,
    apart,
    blocked_layouts,
    coarsest,
    difference,
    find_layout,
    has_elements,
    likely_layout,
    root_mean_square,
)
from opdump.comparison.nodes import Node, Place
from opdump.comparison.results import reads_only_shapes
from opdump.comparison.trace import Trace, leaf_name, names_a_state
from opdump.doing import note
from opdump.records import RunFact, TensorRecord

ValueKind = Literal[
    "by hand",  # given in match.yaml
    "name",  # the same operator, or one that an optimiser put in place of others and the last of these
    "value",  # equal values, within rounding
    "inputs",  # the first outputs that depend on the same common values; the values differ too much to match
    "kind",  # the same kind of operator at the same place; the values differ too much to match
]

WITHIN: Final = 1e-2
"""The largest difference of matched tensors, relative to the root mean square."""
_OF_ONE: Final = 128.0
"""The largest difference of matched tensors of one element, in roundings: among the squared norms of many gradients, two are within a percent by chance."""

_ALIKE: Final = 0.5
"""Operators of different kinds pair only if the likeness of their outputs, from 0 to 1, exceeds this."""
_SAMPLED: Final = 4096
STANDS_FOR: Final[RunFact] = "stands_for"
_IN_BLOCKS: Final = "com.microsoft.nchwc::"
"""Kernels of ONNX Runtime for images in blocks of channels."""


@dataclass(frozen=True, slots=True)
class Pair:
    """An output of A and the output of B with the same values."""

    a: Place
    b: Place
    layout: TensorLayout | None
    """None if there are only statistics."""
    distance: float
    kind: ValueKind = "value"

    def turned(self, b: Trace) -> Pair:
        """The pair with A and B swapped; `b` is the trace of B."""
        layout = None if self.layout is None else self.layout.turned(b.at(self.b).shape)
        return replace(self, a=self.b, b=self.a, layout=layout)


@dataclass(frozen=True, slots=True)
class Shared:
    """The places of the common values in one trace. A value has the same number in both traces."""

    made: dict[Place, int]
    read: dict[Place, int]
    """Keyed by inputs that no operator of the trace produced."""

    def of_input(self, node: Node, slot: int) -> int | None:
        """The number of the common value that an input has; None for a single number that no operator made: all programs have zeros and ones."""
        maker = node.makers.get(slot)
        if maker is not None:
            return self.made.get(maker)
        return self.read.get((node.index, slot)) if math.prod(node.inputs[slot].shape) > 1 else None

    def without(self, numbers: Collection[int]) -> Shared:
        """The common values, without those with these numbers."""
        made, read = (
            {place: number for place, number in places.items() if number not in numbers}
            for places in (self.made, self.read)
        )
        return Shared(made, read)


@dataclass(frozen=True, slots=True)
class Matched:
    """The common values of two traces."""

    pairs: Mapping[Place, Pair]
    """Pairs of outputs, keyed by the output of A."""
    a: Shared
    b: Shared

    def only(self, pairs: Mapping[Place, Pair]) -> Matched:
        """Without the common values that only dropped pairs have: those that are in `self.pairs`, but no longer in `pairs`."""
        kept = {self.a.made.get(place) for place in pairs}
        dropped = {self.a.made[place] for place in self.pairs} - kept
        return replace(self, a=self.a.without(dropped), b=self.b.without(dropped))


@dataclass(frozen=True)
class Partners:
    """Decides which outputs of two traces may be a pair, however near their values are.

    An output that updates a state pairs with the update of the same state, if both programs have one: two scales that begin with ones stay close to
    each other. An output of the forward pass pairs with none of the backward pass, if both runs know their passes: a gradient may equal what another
    variant of the forward operator would give.
    """

    a: Trace
    b: Trace

    @cached_property
    def _updates(self) -> tuple[Mapping[Place, str], Mapping[Place, str]]:
        """The outputs of A and of B that update a state that both update, with its name."""
        of_a, of_b = _updates(self.a), _updates(self.b)
        both = set(of_a.values()) & set(of_b.values())
        ours, theirs = ({place: name for place, name in of.items() if name in both} for of in (of_a, of_b))
        return ours, theirs

    @cached_property
    def know_passes(self) -> bool:
        """Whether both runs have operators of a backward pass."""
        return all(any(node.op.phase == "backward" for node in trace.nodes) for trace in (self.a, self.b))

    def may_pair(self, one: Place, other: Place) -> bool:
        """Whether an output of A and one of B may be a pair."""
        passes = {self.a.nodes[one[0]].op.phase, self.b.nodes[other[0]].op.phase}
        if self.know_passes and passes == {"forward", "backward"}:
            return False
        return self._updates[0].get(one) == self._updates[1].get(other)

    def may_match(self, ours: Collection[Place], theirs: Collection[Place]) -> bool:
        """Whether a value with these outputs in A and one with these in B may be the same; true if a program only reads the value."""
        names = {self._updates[0].get(place) for place in ours}, {self._updates[1].get(place) for place in theirs}
        return not (all(names) and names[0].isdisjoint(names[1]))


def _updates(trace: Trace) -> dict[Place, str]:
    """The outputs that operators write to parameters and states, with the names of these."""
    names: dict[int, str] = {}
    for node in trace.nodes:
        for record in node.inputs.values():
            if record.memory is not None and names_a_state(leaf_name(record)):
                names.setdefault(record.memory.storage, leaf_name(record))
    return {
        (node.index, slot): names[record.memory.storage]
        for node in trace.nodes
        for slot, record in node.specified_outputs.items()
        if record.memory is not None and record.memory.storage in names
    }


@dataclass(frozen=True)
class _Value:
    """The elements of a tensor, in any order. Several places have the same value if operators only move it."""

    places: list[Place]
    """Outputs with this value; empty if the program only reads it."""
    readers: list[Place]
    """Inputs with this value that no operator produced."""
    record: TensorRecord
    mean: float
    rms: float
    top: float

    @cached_property
    def array(self) -> Array:
        return self.record.numpy()


def match_values(a: Trace, b: Trace, given: Sequence[tuple[int, int]] = ()) -> Matched:
    """Match the values of two traces, the nearest first; each value is matched at most once. The nodes of `given` are matched by hand.

    An output of one program may match an input of the other: TensorFlow reads a weight through an operator, PyTorch does not. Such a match makes
    no pair, but prevents the value from being matched with the updated weight, which is close to it.
    """
    note("matching the values of step", a.step)
    pairs, partners = _by_hand(a, b, given), Partners(a, b)
    ours, theirs = _values(a, {one for one, _ in given}), _values(b, {other for _, other in given})
    by_size: dict[int, list[int]] = defaultdict(list)
    for number, value in enumerate(theirs):
        by_size[math.prod(value.record.shape)].append(number)
    found = []
    for number, value in enumerate(ours):
        for other in by_size.get(math.prod(value.record.shape), ()):
            may_match = partners.may_match(value.places, theirs[other].places)
            distance = _distance(value, theirs[other]) if may_match else None
            if distance is not None:
                found.append((distance, abs(number / len(ours) - other / len(theirs)), number, other))
    matched = Matched(pairs, Shared({}, {}), Shared({}, {}))
    for each, pair in enumerate(pairs.values()):
        matched.a.made[pair.a] = matched.b.made[pair.b] = -1 - each
    taken_a: set[int] = set()
    taken_b: set[int] = set()
    for distance, _, number, other in sorted(found):
        if number not in taken_a and other not in taken_b:
            taken_a.add(number)
            taken_b.add(other)
            for shared, value in ((matched.a, ours[number]), (matched.b, theirs[other])):
                shared.made.update(dict.fromkeys(value.places, number))
                shared.read.update(dict.fromkeys(value.readers, number))
            if theirs[other].places:
                for pair in _paired(partners, ours[number].places, theirs[other].places, distance):
                    pairs[pair.a] = pair
    return matched


def _by_hand(a: Trace, b: Trace, given: Sequence[tuple[int, int]]) -> dict[Place, Pair]:
    """Pairs of outputs of these nodes with the same values, or else the nearest pair."""
    found: dict[Place, Pair] = {}
    for one, other in given:
        fitting = [
            Pair((one, slot), (other, place), *how, "by hand")
            for slot, record in a.nodes[one].outputs.items()
            for place, there in b.nodes[other].outputs.items()
            if (how := _how_apart(record, there)) is not None
        ]
        fitting.sort(key=lambda pair: pair.distance)
        for pair in [pair for pair in fitting if pair.distance <= WITHIN] or fitting[:1]:
            found.setdefault(pair.a, pair)
    return found


def _how_apart(one: TensorRecord, other: TensorRecord) -> tuple[TensorLayout | None, float] | None:
    """The best layout and the distance in it, by statistics if elements are missing; None if the sizes differ or the tensors are empty."""
    if math.prod(one.shape) != math.prod(other.shape) or 0 in one.shape:
        return None
    if has_elements(one) and has_elements(other):
        return likely_layout(one.numpy(), other.numpy())
    distance = apart(one, other)
    return None if distance is None else (None, distance)


def _values(trace: Trace, without: Collection[int] = ()) -> list[_Value]:
    """The distinct values of a trace, by first occurrence. Tensors that repeat one element are left out, because they identify nothing."""
    found: dict[object, _Value] = {}
    for node in trace.nodes:
        given = {slot: record for slot, record in node.inputs.items() if slot not in node.makers}
        made = {} if node.index in without else node.specified_outputs
        for is_made, records in ((False, given), (True, made)):
            for slot, record in records.items():
                key = _key_of(record)
                if key is not None:
                    if key not in found:
                        found[key] = _Value([], [], record, *_moments(record))
                    (found[key].places if is_made else found[key].readers).append((node.index, slot))
    return list(found.values())


def _key_of(record: TensorRecord) -> object:
    """A key that is equal for tensors with the same elements in any order; None if the tensor identifies nothing."""
    if 0 in record.shape or record.skip:
        return None
    if has_elements(record):
        array = record.numpy()
        if array.dtype.kind == "c" or (array.size > 1 and (array == array.flat[0]).all()):
            return None
        return array.size, array.dtype.str, _multiset_hash(array)
    if "max" in record.statistics and record.statistics["max"] != record.statistics.get("min"):
        return record.shape, *(record.statistics.get(name) for name in ("max", "min", "avg", "l2norm"))
    return None


def share_inputs(a: Trace, b: Trace) -> bool:
    """Whether both programs read a tensor (data or a parameter) with the same elements, or the same statistics if there are no elements."""
    return bool(_keys_of_inputs(a) & _keys_of_inputs(b))


def _keys_of_inputs(trace: Trace) -> set[object]:
    inputs = (record for node in trace.nodes for slot, record in node.inputs.items() if slot not in node.makers)
    floats = (
        record for record in inputs if record.dtype.startswith(("float", "bfloat")) and math.prod(record.shape) > 1
    )
    return {key for record in floats if (key := _key_of(record)) is not None}


def _multiset_hash(array: Array) -> int:
    """A hash that does not depend on the order of the elements."""
    elements = np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}").astype(np.uint64)
    with np.errstate(over="ignore"):
        mixed = (elements + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)
        return int((mixed ^ (mixed >> np.uint64(32))).sum())


def _moments(record: TensorRecord) -> tuple[float, float, float]:
    """Mean, root mean square and maximum of the finite elements."""
    if not has_elements(record):
        size = math.prod(record.shape)
        mean, norm, top = (float(record.statistics.get(name, math.nan)) for name in ("avg", "l2norm", "max"))
        return mean, norm / math.sqrt(size), top
    with np.errstate(invalid="ignore"):  # an output that no operator reads may contain anything, signalling NaN too
        values = record.numpy().astype(np.float64)
    values = values[np.isfinite(values)]
    if not values.size:
        return 0.0, 0.0, 0.0
    return float(values.mean()), root_mean_square(values), float(values.max())


def _distance(one: _Value, other: _Value) -> float | None:
    """The distance of two values in the best layout; None if they do not match."""
    scale, within = max(one.rms, other.rms), _within(one.record, other.record)
    by_moments = max(
        (abs(x - y) for x, y in ((one.mean, other.mean), (one.rms, other.rms)) if not math.isnan(x - y)), default=0.0
    )
    if by_moments > within * scale:
        return None
    if not has_elements(one.record) or not has_elements(other.record):
        apart = max(by_moments, 0.0 if math.isnan(one.top - other.top) else abs(one.top - other.top))
        return apart / scale if scale and apart <= within * scale else None
    if (one.array.dtype.kind == "f") != (other.array.dtype.kind == "f"):
        return None
    layout = find_layout(one.array, other.array, within=within if one.array.dtype.kind == "f" else 0.0)
    return None if layout is None else layout[1]


def _within(one: TensorRecord, other: TensorRecord) -> float:
    """The largest difference of two tensors of the same size that match."""
    return min(WITHIN, _OF_ONE * coarsest((one, other))) if math.prod(one.shape) == 1 else WITHIN


def _paired(partners: Partners, ours: Sequence[Place], theirs: Sequence[Place], distance: float) -> list[Pair]:
    """Pair the outputs with one value: in order, preferring the same kind of operator. Outputs of A that are left over share the first of B."""
    a, b, free = partners.a, partners.b, list(theirs)
    found = []
    for place in ours:
        record, node = a.at(place), a.nodes[place[0]]
        fitting = [each for each in theirs if partners.may_pair(place, each)]
        if not fitting:
            continue
        left = [each for each in fitting if each in free]
        likely = [each for each in left if same_kind(node, b.nodes[each[0]])] or left
        other = likely[0] if likely else fitting[0]
        if other in free:
            free.remove(other)
        there = b.at(other)
        layout = None
        if has_elements(record) and has_elements(there):
            best = find_layout(record.numpy(), there.numpy(), within=WITHIN)
            if best is None:
                continue
            layout = best[0]
        found.append(Pair(place, other, layout, distance))
    return found


def same_kind(one: Node, other: Node) -> bool:
    """Whether two operators have the same type name, or share a row of the table of operator types."""
    if one.bare_type.lower() == other.bare_type.lower():
        return True
    return not one.concepts.isdisjoint(other.concepts)


def match_flow(
    a: Sequence[Node], b: Sequence[Node], flows: tuple[Flow, Flow], partners: Partners
) -> Mapping[Place, Pair]:
    """Pair first outputs of one kind, size and phase whose inputs have counterparts, in any order: for values that differ too much to be matched.

    An operator after an unknown one is paired only with one of the same line, and only if no other is left.
    """
    found: dict[Place, Pair] = {}
    free = [node for node in a if _has_first_output(node)]
    waiting = [node for node in b if _has_first_output(node)]
    while (one_and_other := _next_of_flow(free, waiting, flows, partners)) is not None:
        one, other = one_and_other
        free.remove(one)
        waiting.remove(other)
        pair = _pair_by_place(one, other, "kind")
        if pair is not None:
            found[pair.a] = pair
            for flow, place in zip(flows, (pair.a, pair.b), strict=True):
                flow.known[place] = pair.b
    return found


def _next_of_flow(
    free: Sequence[Node],
    waiting: Sequence[Node],
    flows: tuple[Flow, Flow],
    partners: Partners,
) -> tuple[Node, Node] | None:
    """The next node of A and of B that `match_flow` pairs."""
    given = {one.index: flows[0].read(one) for one in free}
    after_unknown: list[tuple[Node, Node]] = []
    for other in waiting:
        wanted = flows[1].read(other)
        read = [each for each, _ in wanted]
        if all(each is None for each in read):
            continue
        likely = [
            one
            for one in free
            if given[one.index] == wanted
            and _is_like(one, other)
            and partners.may_pair((one.index, 0), (other.index, 0))
        ]
        best = max(likely, key=lambda one: (one.op.line == other.op.line, _nearness_of(one, other)), default=None)
        if best is not None and None not in read:
            return best, other
        if best is not None and best.op.line == other.op.line:
            after_unknown.append((best, other))
    return next(iter(after_unknown), None)


def _is_like(one: Node, other: Node) -> bool:
    return one.sizes[:1] == other.sizes[:1] and one.op.phase == other.op.phase and same_kind(one, other)


@dataclass(frozen=True, slots=True)
class Flow:
    """What the operators of a trace read, by the counterparts in the other trace."""

    trace: Trace
    known: dict[Place, object]
    """What identifies outputs in both traces."""
    given: Mapping[Place, object]
    """The same for inputs that no operator produced."""

    @classmethod
    def both(cls, a: Trace, b: Trace, matched: Matched, pairs: Mapping[Place, Pair]) -> tuple[Flow, Flow]:
        """Those of two traces with common values and pairs."""
        ours = {**{place: pair.b for place, pair in pairs.items()}, **matched.a.made}
        theirs = {**{pair.b: pair.b for pair in pairs.values()}, **matched.b.made}
        return cls(a, ours, matched.a.read), cls(b, theirs, matched.b.read)

    def read(self, node: Node) -> tuple[tuple[object, int], ...]:
        """What identifies each input (None if it has no counterpart), with its size; without single numbers that no operator produced."""
        return tuple(
            (self._source(node, slot), math.prod(record.shape))
            for slot, record in sorted(node.inputs.items())
            if slot in node.makers or math.prod(record.shape) != 1
        )

    def _source(self, node: Node, slot: int) -> object:
        while slot in node.makers:
            place = node.makers[slot]
            if place in self.known:
                return self.known[place]
            node, slot = self.trace.nodes[place[0]], 0
            if not node.arranges and node.operator_class != "casts":
                return None
        return self.given.get((node.index, slot))


def _nearness_of(one: Node, other: Node) -> float:
    return _nearness(one.outputs[0].numpy(), other.outputs[0].numpy())


def match_kinds(a: Sequence[Node], b: Sequence[Node], may_pair: Callable[[Node, Node], bool]) -> Mapping[Place, Pair]:
    """Pair first outputs by kind, size and likeness, keeping the order of both sides: for values that differ too much to be matched."""
    most = np.zeros((len(a) + 1, len(b) + 1), np.float32)
    likeness = _likeness(a, b, may_pair)
    for i in range(len(a)):
        for j in range(len(b)):
            most[i + 1, j + 1] = max(most[i, j + 1], most[i + 1, j], most[i, j] + likeness[i, j])
    found: dict[Place, Pair] = {}
    i, j = len(a), len(b)
    while i and j:
        if most[i, j] == most[i - 1, j]:
            i -= 1
        elif most[i, j] == most[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pair = _pair_by_place(a[i], b[j], "kind")
            if pair is not None:
                found[pair.a] = pair
    return found


def _likeness(a: Sequence[Node], b: Sequence[Node], may_pair: Callable[[Node, Node], bool]) -> NDArray[np.float32]:
    """For each node of A and of B, how likely their first outputs are a pair; 0 if they cannot be one."""
    found = np.zeros((len(a), len(b)), np.float32)
    known: dict[tuple[str, str], bool] = {}
    for i, one in enumerate(a):
        for j, other in enumerate(b):
            if one.sizes[:1] != other.sizes[:1] or not _has_first_output(one) or not _has_first_output(other):
                continue
            types = one.op.op_type, other.op.op_type
            if types not in known:
                known[types] = same_kind(one, other)
            nearness = _nearness_of(one, other)
            if (known[types] or nearness > _ALIKE) and may_pair(one, other):
                found[i, j] = known[types] + nearness
    return found


def _nearness(one: Array, other: Array) -> float:
    """The likeness of two tensors in row-major order: 1 if equal, 0 if they differ by their full size. Large tensors are sampled."""
    if one.dtype.kind != "f" or other.dtype.kind != "f":
        return 0.0
    step = 1 + one.size // _SAMPLED
    return max(0.0, 1.0 - difference(one.reshape(-1)[::step], other.reshape(-1)[::step]).relative)


def _has_first_output(node: Node) -> bool:
    record = node.specified_outputs.get(0)
    return record is not None and has_elements(record) and 0 not in record.shape


def match_dependents(a: Trace, b: Trace, matched: Matched, partners: Partners) -> Mapping[Place, Pair]:
    """Pair the first output of each program that depends on a set of common values, such as a result and a weight: for values that differ too much to be
    matched, in programs with other operators.
    """
    ours, theirs = _first_dependents(a, matched.a), _first_dependents(b, matched.b)
    found: dict[Place, Pair] = {}
    for values in ours.keys() & theirs.keys():
        one, other = ours[values], theirs[values]
        if one.sizes[:1] == other.sizes[:1] and partners.may_pair((one.index, 0), (other.index, 0)):
            pair = _pair_by_place(one, other, "inputs")
            if pair is not None:
                found[pair.a] = pair
    return found


def _first_dependents(trace: Trace, shared: Shared) -> Mapping[frozenset[int], Node]:
    """For each set of two or more common values, the first operator that depends on all of these and no other."""
    first: dict[frozenset[int], Node] = {}
    known: list[frozenset[int]] = []
    for node in trace.nodes:
        given: set[int] = set()
        for slot, record in node.inputs.items():
            maker, number = node.makers.get(slot), shared.of_input(node, slot)
            if number is not None:
                given.update((number,) if math.prod(record.shape) > 1 else ())
            elif maker is not None:
                given |= known[maker[0]]
        known.append(frozenset() if reads_only_shapes(node) else frozenset(given))
        if len(given) > 1 and (node.index, 0) not in shared.made and _has_first_output(node):
            first.setdefault(known[-1], node)
    return first


def match_names(a: Trace, b: Trace) -> Mapping[Place, Pair]:
    """Pair outputs of the operators of a program and of its optimised version by name, for values that differ too much to be matched: an operator
    that replaces others has the output of the last one. Empty if less than a fifth of the operators of B have a name of A: other code has a few of its
    names by chance.
    """
    known = {(node.op.op_name, node.op.occurrence): node for node in a.nodes}
    in_blocks = _nodes_in_blocks(b)
    partners: dict[int, Node] = {}
    for node in b.nodes:
        names = ((name, node.op.occurrence) for name in (node.op.op_name, *node.op.arguments.get(STANDS_FOR, ())))
        partner = max((known[name] for name in names if name in known), key=lambda each: each.index, default=None)
        if partner is not None:
            partners[node.index] = partner
    found: dict[Place, Pair] = {}
    if len(partners) * 5 < len(b.nodes):
        return found
    for index, partner in partners.items():
        node = b.nodes[index]
        for slot in partner.outputs.keys() & node.outputs.keys() if same_kind(partner, node) else (0,):
            pair = _pair_of_names(partner, node, slot, in_blocks=index in in_blocks)
            if pair is not None:
                found.setdefault(pair.a, pair)
    return found


def _nodes_in_blocks(trace: Trace) -> set[int]:
    """The operators of ONNX Runtime that write images in blocks of channels, and those that compute with these elements one by one."""
    found: set[int] = set()
    for node in trace.nodes:
        gives = node.kernel.startswith(_IN_BLOCKS) or any(maker in found for maker, _ in node.makers.values())
        if gives and node.bare_type != "ReorderOutput":
            found.add(node.index)
    return found


def _pair_of_names(one: Node, other: Node, slot: int, *, in_blocks: bool) -> Pair | None:
    records = one.outputs.get(slot), other.outputs.get(slot)
    if not all(record is not None and has_elements(record) for record in records):
        return None
    mine, theirs = one.outputs[slot].numpy(), other.outputs[slot].numpy()
    layouts = _layouts_of_names(mine.shape, theirs.shape, in_blocks=in_blocks)
    found = ((difference(mine, each.apply(theirs)).relative, each) for each in layouts)
    distance, layout = min(found, key=lambda each: each[0], default=(math.inf, None))
    return None if layout is None else Pair((one.index, slot), (other.index, slot), layout, distance, "name")


def _layouts_of_names(one: tuple[int, ...], other: tuple[int, ...], *, in_blocks: bool) -> Iterator[TensorLayout]:
    """The layouts that B's output of an operator may have if A's has the shape `one`. Blocks of channels are padded."""
    if in_blocks and len(one) == len(other) and all(map(operator.le, one, other)):
        for layout in blocked_layouts(other, in_b=True):
            yield layout if one == other else replace(layout, cut=one)
    elif 0 not in one and math.prod(one) == math.prod(other):
        yield TensorLayout(other, tuple(range(len(other))), one)


def _pair_by_place(one: Node, other: Node, kind: ValueKind) -> Pair | None:
    """The pair of the first outputs of two operators that stand at the same place in their programs."""
    mine, theirs = one.outputs[0].numpy(), other.outputs[0].numpy()
    best = likely_layout(mine, theirs)
    return None if best is None else Pair((one.index, 0), (other.index, 0), *best, kind)


# Drift: frameworks round differently, so after some training steps the weights and optimizer states of two runs differ by more than the rounding of
# one operator. That is not a difference of the current step.

MOST: Final = 1e-4
"""The largest difference, relative to the root mean square, that counts as drift."""


def drifted_inputs(a: Trace, b: Trace, matched: Matched) -> Mapping[Place, Array]:
    """Replacements for the inputs of A that no operator produced: B's elements in A's layout. If B does not show the value, A's elements are moved
    at random, by the largest distance of paired outputs of that size: a momentum by that of its gradient.

    Only for floating-point inputs with elements. Empty if either run is at step 0, because training starts with the same numbers.
    """
    if min(a.step, b.step) == 0:
        return {}
    theirs = {number: b.nodes[index].inputs[slot] for (index, slot), number in matched.b.read.items()}
    theirs |= {number: b.at(place) for place, number in matched.b.made.items()}
    apart: dict[int, float] = defaultdict(float)
    for pair in matched.pairs.values():
        size = math.prod(a.at(pair.a).shape)
        if pair.distance <= MOST:
            apart[size] = max(apart[size], pair.distance)
    found: dict[Place, Array] = {}
    for node in a.nodes:
        for slot, record in node.inputs.items():
            if slot in node.makers or record.skip or not has_elements(record) or not record.dtype.startswith("float"):
                continue
            number = matched.a.read.get((node.index, slot))
            other = None if number is None else theirs[number]
            moved = _moved(record, apart[math.prod(record.shape)]) if other is None else _as_in(record, other)
            if moved is not None:
                found[node.index, slot] = moved
    return found


def _as_in(record: TensorRecord, other: TensorRecord) -> Array | None:
    """The elements of `other` in the layout of `record`; None if they differ by more than drift."""
    if not has_elements(other):
        return None
    layout = find_layout(record.numpy(), other.numpy(), within=MOST)
    return None if layout is None else layout[0].apply(other.numpy()).astype(record.numpy().dtype)


def _moved(record: TensorRecord, apart: float) -> Array | None:
    """The elements, each moved up or down by this share of their root mean square; deterministic. None if nothing is to be moved."""
    values = record.numpy()
    rms = root_mean_square(values)
    if apart == 0.0 or not math.isfinite(rms):
        return None
    signs = np.random.default_rng(values.size).choice((-1.0, 1.0), values.shape)
    return (values + apart * rms * signs).astype(values.dtype)
