"""Finds which tensor of one run is which tensor of another by what they hold, whatever the operators are called that made them.

Frameworks agree on few names and few operators: one folds a batch norm into a convolution, the other takes a GELU apart. What they cannot
help is to come by the same values again and again, in another layout and to rounding.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.differences import TensorLayout, apart, difference, find_layout
from opdump.comparison.nodes import Node
from opdump.comparison.trace import Trace, has_elements
from opdump.doing import note
from opdump.records import TensorRecord

Array = NDArray[Any]
Place = tuple[int, int]
"""A node and a slot of its outputs."""
ValueKind = Literal[
    "by hand",  # somebody said so
    "value",  # they hold the same
    "kind",  # the same kind of operator at the same place, where values are too far apart to tell
]

WITHIN: Final = 1e-2
"""Tensors that are further apart, relative to the root mean square, are not taken for each other."""

_ALIKE: Final = 0.5
"""Tensors that are nearer than this to equal are taken for each other where nothing else tells, whatever operators made them."""
_SAMPLED: Final = 4096


@dataclass(frozen=True, slots=True)
class Pair:
    """An output of A and the one of B that holds the same."""

    a: Place
    b: Place
    layout: TensorLayout | None
    """None where there are statistics alone."""
    distance: float
    kind: ValueKind = "value"

    def turned(self, b: Trace) -> Pair:
        """The same for who compares B with A."""
        layout = None if self.layout is None else self.layout.turned(b.nodes[self.b[0]].outputs[self.b[1]].shape)
        return replace(self, a=self.b, b=self.a, layout=layout)


@dataclass(frozen=True, slots=True)
class Shared:
    """The numbers of the values that a trace has in common with the other, which has the same numbers for them."""

    made: dict[Place, int]
    read: dict[Place, int]
    """By inputs that no operator of the trace made."""


@dataclass(frozen=True, slots=True)
class Matched:
    """What two traces have in common."""

    pairs: Mapping[Place, Pair]
    """Outputs, by those of A."""
    a: Shared
    b: Shared


@dataclass(frozen=True)
class _Value:
    """What a tensor holds, whatever the order of its elements. Outputs of several operators hold the same where one of them moves it."""

    places: list[Place]
    """Outputs; none of what the program was given."""
    readers: list[Place]
    """Inputs that no operator made."""
    record: TensorRecord
    mean: float
    rms: float
    top: float

    @cached_property
    def array(self) -> Array:
        return self.record.numpy()


def match_values(a: Trace, b: Trace, given: Sequence[tuple[int, int]] = ()) -> Matched:
    """What two traces have in common. Each value of A has at most one of B, the nearest first. The nodes of `given` are matched by hand.

    A value of one program may be what the other was given: TensorFlow reads a weight by an operator, PyTorch does not. So that it is not
    taken for the weight after its update, which is near it, it is matched with that, and makes no pair.
    """
    note("matching the values of step", a.step)
    pairs = _by_hand(a, b, given)
    ours, theirs = _values(a, {one for one, _ in given}), _values(b, {other for _, other in given})
    by_size: dict[int, list[int]] = defaultdict(list)
    for number, value in enumerate(theirs):
        by_size[math.prod(value.record.shape)].append(number)
    found = []
    for number, value in enumerate(ours):
        for other in by_size.get(math.prod(value.record.shape), ()):
            distance = _distance(value, theirs[other])
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
                for pair in _paired(a, b, ours[number].places, theirs[other].places, distance):
                    pairs[pair.a] = pair
    return matched


def _by_hand(a: Trace, b: Trace, given: Sequence[tuple[int, int]]) -> dict[Place, Pair]:
    """The outputs of these nodes that hold the same; where none does, the two that are nearest."""
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
    """The best layout and the distance that is left, by statistics where elements are missing; None for tensors of other sizes."""
    if math.prod(one.shape) != math.prod(other.shape) or 0 in one.shape:
        return None
    if has_elements(one) and has_elements(other):
        return find_layout(one.numpy(), other.numpy(), within=math.inf)
    distance = apart(one, other)
    return None if distance is None else (None, distance)


def _values(trace: Trace, without: Collection[int] = ()) -> list[_Value]:
    """The distinct values of a trace, in the order in which they were made or read first. Tensors of one repeated element say nothing."""
    found: dict[object, _Value] = {}
    for node in trace.nodes:
        given = {slot: record for slot, record in node.inputs.items() if slot not in node.makers}
        made = {} if node.index in without else node.outputs
        for is_made, records in ((False, given), (True, made)):
            for slot, record in records.items():
                key = _key_of(record)
                if key is not None:
                    if key not in found:
                        found[key] = _Value([], [], record, *_moments(record))
                    (found[key].places if is_made else found[key].readers).append((node.index, slot))
    return list(found.values())


def _key_of(record: TensorRecord) -> object:
    """Equal for tensors of the same elements, in any order; None of one that says nothing."""
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
    """Whether both programs were given a tensor of the same elements: data, or a parameter."""
    return bool(_hashes_of_inputs(a) & _hashes_of_inputs(b))


def _hashes_of_inputs(trace: Trace) -> set[tuple[int, int]]:
    return {
        (array.size, _multiset_hash(array))
        for node in trace.nodes
        for slot, record in node.inputs.items()
        if slot not in node.makers and has_elements(record)
        for array in [record.numpy()]
        if array.dtype.kind == "f" and array.size > 1 and not (array == array.flat[0]).all()
    }


def _multiset_hash(array: Array) -> int:
    """The same for every order of the same elements."""
    elements = np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}").astype(np.uint64)
    with np.errstate(over="ignore"):
        mixed = (elements + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)
        return int((mixed ^ (mixed >> np.uint64(32))).sum())


def _moments(record: TensorRecord) -> tuple[float, float, float]:
    """Mean, root mean square and largest of the finite elements."""
    if not has_elements(record):
        size = math.prod(record.shape)
        mean, norm, top = (float(record.statistics.get(name, math.nan)) for name in ("avg", "l2norm", "max"))
        return mean, norm / math.sqrt(size), top
    values = record.numpy().astype(np.float64)
    values = values[np.isfinite(values)]
    if not values.size:
        return 0.0, 0.0, 0.0
    return float(values.mean()), float(np.sqrt(np.mean(np.square(values)))), float(values.max())


def _distance(one: _Value, other: _Value) -> float | None:
    """How far they are apart, in the layouts that fit best; None where that is too far."""
    scale = max(one.rms, other.rms)
    by_moments = max(
        (abs(x - y) for x, y in ((one.mean, other.mean), (one.rms, other.rms)) if not math.isnan(x - y)), default=0.0
    )
    if by_moments > WITHIN * scale:
        return None
    if not has_elements(one.record) or not has_elements(other.record):
        apart = max(by_moments, 0.0 if math.isnan(one.top - other.top) else abs(one.top - other.top))
        return apart / scale if scale and apart <= WITHIN * scale else None
    if (one.array.dtype.kind == "f") != (other.array.dtype.kind == "f"):
        return None
    layout = find_layout(one.array, other.array, within=WITHIN if one.array.dtype.kind == "f" else 0.0)
    return None if layout is None else layout[1]


def _paired(a: Trace, b: Trace, ours: Sequence[Place], theirs: Sequence[Place], distance: float) -> list[Pair]:
    """The outputs of one value: those of the same kind of operator first, in order; what is left over shares the first of B."""
    free = list(theirs)
    found = []
    for place in ours:
        record = a.nodes[place[0]].outputs[place[1]]
        likely = [each for each in free if same_kind(a.nodes[place[0]], b.nodes[each[0]])] or free
        other = likely[0] if likely else theirs[0]
        if other in free:
            free.remove(other)
        there = b.nodes[other[0]].outputs[other[1]]
        layout = None
        if has_elements(record) and has_elements(there):
            best = find_layout(record.numpy(), there.numpy(), within=WITHIN)
            if best is None:
                continue
            layout = best[0]
        found.append(Pair(place, other, layout, distance))
    return found


def same_kind(one: Node, other: Node) -> bool:
    """Whether the table of operator types has them in one row, or they have the same name."""
    if one.bare_type.lower() == other.bare_type.lower():
        return True
    return not one.concepts.isdisjoint(other.concepts)


def match_kinds(
    a: Sequence[Node], b: Sequence[Node], may_pair: Callable[[Node, Node], bool] = lambda _, __: True
) -> Mapping[Place, Pair]:
    """Pairs the first outputs of operators of one kind and size, in one order, that are most alike: where values differ too much to tell."""
    most = np.zeros((len(a) + 1, len(b) + 1), np.float32)
    likeness = np.zeros((len(a), len(b)), np.float32)
    known: dict[tuple[str, str], bool] = {}
    for i, one in enumerate(a):
        for j, other in enumerate(b):
            if one.sizes[:1] != other.sizes[:1] or not _has_first_output(one) or not _has_first_output(other):
                continue
            types = one.op.op_type, other.op.op_type
            if types not in known:
                known[types] = same_kind(one, other)
            nearness = _nearness(one.outputs[0].numpy(), other.outputs[0].numpy())
            if (known[types] or nearness > _ALIKE) and may_pair(one, other):
                likeness[i, j] = known[types] + nearness
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
            pair = _pair_of_kind(a[i], b[j])
            if pair is not None:
                found[pair.a] = pair
    return found


def _nearness(one: Array, other: Array) -> float:
    """1 for equal elements in row-major order, 0 for those that have nothing in common."""
    if one.dtype.kind != "f" or other.dtype.kind != "f":
        return 0.0
    step = 1 + one.size // _SAMPLED
    return max(0.0, 1.0 - difference(one.reshape(-1)[::step], other.reshape(-1)[::step]).relative)


def _has_first_output(node: Node) -> bool:
    return 0 in node.outputs and has_elements(node.outputs[0]) and 0 not in node.outputs[0].shape


def _pair_of_kind(one: Node, other: Node) -> Pair | None:
    best = find_layout(one.outputs[0].numpy(), other.outputs[0].numpy(), within=math.inf)
    return None if best is None else Pair((one.index, 0), (other.index, 0), *best, "kind")


# How far two trainings have drifted apart by rounding when a step begins: what A is given, as B might have it.
#
# Two frameworks round otherwise, so after ten steps weights and the states of optimizers differ by more than one operator's rounding. That is no
# difference of the step.

MOST: Final = 1e-4
"""What is further apart, relative to the root mean square, has not drifted: it differs."""


def drifted_inputs(a: Trace, b: Trace, matched: Matched) -> Mapping[Place, Array]:
    """What A's nodes read and no operator made: B's elements of it in A's layout; where B does not show it, A's, moved at random by as
    much as the two are apart in what they give of that size: a momentum by as much as its gradient.

    Floats with elements alone. Nothing of the first step of a training, which begins with the same numbers.
    """
    if min(a.step, b.step) == 0:
        return {}
    theirs = {number: b.nodes[index].inputs[slot] for (index, slot), number in matched.b.read.items()}
    theirs |= {number: b.nodes[index].outputs[slot] for (index, slot), number in matched.b.made.items()}
    apart: dict[int, float] = defaultdict(float)
    for pair in matched.pairs.values():
        size = math.prod(a.nodes[pair.a[0]].outputs[pair.a[1]].shape)
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
    """The elements of the other in the layout of the first; None where they have not drifted, but differ."""
    if not has_elements(other):
        return None
    layout = find_layout(record.numpy(), other.numpy(), within=MOST)
    return None if layout is None else layout[0].apply(other.numpy()).astype(record.numpy().dtype)


def _moved(record: TensorRecord, apart: float) -> Array | None:
    """The elements, each moved by that much of their root mean square, up or down; the same of equal ones every time."""
    values = record.numpy()
    rms = float(np.sqrt(np.mean(np.square(values.astype(np.float64))))) if values.size else math.nan
    if apart == 0.0 or not math.isfinite(rms):
        return None
    signs = np.random.default_rng(values.size).choice((-1.0, 1.0), values.shape)
    return (values + apart * rms * signs).astype(values.dtype)
