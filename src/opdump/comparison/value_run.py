"""Runs A's program on B's values, from one common value to the next, and finds the values of B that A does not produce.

Each segment of A runs in float64, and in float32 to measure the effect of rounding. Every segment starts from values of B, so no earlier
difference is inherited, and operators of B are not run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from opdump.adapters.replay import AS_RECORDED, Replayed
from opdump.comparison.accuracy import RESULT, UNLIKE_FRAMEWORKS, distance, own_errors, told_error
from opdump.comparison.arguments import chosen_rounding
from opdump.comparison.differences import (
    Array,
    coarsest,
    difference,
    digest_of,
    epsilon_of,
    has_elements,
    likely_layout,
    same_bits,
)
from opdump.comparison.execution import Execution, recorded, recorded_input, recorded_values, replay
from opdump.comparison.memory import widened
from opdump.comparison.nodes import Kind, Node, Place, Suspect
from opdump.comparison.results import depend_on_data
from opdump.comparison.trace import Trace, leaf_name
from opdump.comparison.value_matching import Pair, same_kind
from opdump.records import IO, TensorRecord

ROUNDINGS: Final = 16.0
"""A value of B may differ by this many times the effect of rounding on A's operators, because B may round elsewhere."""
_FUNCTIONS: Final = frozenset({"Exp", "Expm1", "Log", "Log1p", "Tanh", "Sigmoid", "Erf", "Sin", "Cos"})
"""Functions that a kernel may approximate by a polynomial: the exp of MindSpore errs by 20 roundings."""
_OF_FUNCTIONS: Final = 4.0
"""A segment of B with such a function may differ by this many times more."""
_BY_STATISTICS: Final = 1e-3
_BYTES: Final = frozenset({"int8", "uint8"})
_SCALE: Final = 1
"""The slot with the scale of a quantised value."""
_ONE_LEVEL: Final = 1.01
"""One level of a quantised value, plus its rounding in float32."""
_LEAST: Final = 2.0**-52
"""The unit of rounding for exact types."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A value of B that A does not produce from the values before it."""

    pair: Pair
    times: float
    """The difference, in multiples of the effect of rounding."""
    off: float
    """The difference relative to the root mean square."""
    given: float | None = None
    """If A's operator could not be run again: how far its inputs differ between the runs."""


@dataclass(slots=True)
class ValueRun:
    """The result of running A on B's values."""

    failures: list[Failure] = field(default_factory=list)
    not_run: set[str] = field(default_factory=set)
    inputs: dict[int, dict[int, Array]] = field(default_factory=dict)
    """The inputs of the nodes in `keep`, by node and slot."""


_Inputs = tuple[tuple[int, str, tuple[int, ...], bytes], ...]


class Replays:
    """Replays of operators, each with its last two results, because runs on values that differ in one pair repeat most of them."""

    def __init__(self) -> None:
        self._latest: dict[tuple[int, str], list[tuple[_Inputs, Replayed | None]]] = {}

    def run(self, node: Node, values: Mapping[int, Array], dtype: str = "float64") -> Replayed | None:
        """The same as `replay`. The node must be of the same trace in each call."""
        inputs = tuple((slot, each.dtype.str, each.shape, digest_of(each)) for slot, each in values.items())
        latest = self._latest.setdefault((node.index, dtype), [])
        for known, done in latest:
            if known == inputs:
                return done
        latest.insert(0, (inputs, replay(node, values, dtype)))
        del latest[2:]
        return latest[0][1]


def run_on_values(
    a: Trace,
    b: Trace,
    pairs: Mapping[Place, Pair],
    keep: Collection[int] = (),
    drifted: Mapping[Place, Array] = MappingProxyType({}),
    replays: Replays | None = None,
) -> ValueRun:
    """Run A's nodes in order, and continue with B's value after each pair. Keep the inputs of the nodes in `keep`.

    The float32 run, which measures rounding, starts with the `drifted` inputs: those moved by the rounding of earlier steps. `replays` has the
    results of other runs of A.
    """
    replays = replays or Replays()
    run, segments = ValueRun(), _Segments(a, b, pairs)
    exact, rounded = Execution(a), Execution(a)
    inherited: dict[int, float] = {}
    """For nodes that could not be run again: how far their inputs are from the recorded ones."""

    def drifted_leaf(node: Node, slot: int) -> Array | None:
        return drifted.get((node.index, slot), recorded_input(node, slot))

    for (node, values), (_, rough) in zip(exact.nodes(), rounded.nodes(drifted_leaf), strict=True):
        if node.index in keep:
            run.inputs[node.index] = values
        # Rounding to a type that hardly any operator has is no noise, but may be the difference.
        is_odd_cast = node.operator_class == "casts" and node.rounding > segments.most[0]
        types = (AS_RECORDED, AS_RECORDED) if is_odd_cast else ("float64", "float32")
        done, again = replays.run(node, values, types[0]), replays.run(node, rough, types[1])
        given = recorded_values(node.outputs)
        outputs = given if done is None else dict(done.outputs)
        rough_outputs = dict(given) if again is None else dict(again.outputs)
        if done is None:
            run.not_run.add(node.kernel)
            inherited[node.index] = _difference_of_inputs(node, values, pairs, inherited)
        for pair in filter(None, (pairs.get((node.index, slot)) for slot in node.outputs)):
            theirs = value_in_a(b, pair)
            failure = _by_replay(segments, pair, done, again, theirs, inherited.get(node.index, 0.0))
            if failure is not None:
                run.failures.append(failure)
            if theirs is not None:
                outputs[pair.a[1]] = rough_outputs[pair.a[1]] = theirs
        exact.write(node, outputs)
        rounded.write(node, rough_outputs)
    return run


def _difference_of_inputs(
    node: Node, values: Mapping[int, Array], pairs: Mapping[Place, Pair], inherited: Mapping[int, float]
) -> float:
    """How far the inputs of a node are from the recorded ones, if A runs on B's values. Recorded outputs of nodes that could not be run again are
    as far away as the inputs of these.
    """
    found = [inherited.get(maker[0], 0.0) for maker in node.makers.values() if maker not in pairs]
    for slot, value in values.items():
        own = recorded_input(node, slot)
        if own is not None and own.size == value.size:
            found.append(difference(own, value.reshape(own.shape)).relative)
    return max(found, default=0.0)


def value_in_a(b: Trace, pair: Pair) -> Array | None:
    """B's value of a pair in A's layout; None if there are only statistics."""
    values = recorded(b.at(pair.b))
    return None if values is None or pair.layout is None else pair.layout.apply(values)


def _times_rounding(expected: Array, rounded: Array, theirs: Array, epsilon: float) -> tuple[float, float]:
    """How far a value is from the expected one, in multiples of the effect of rounding and relative to its size. The first is the larger of
    two measures: by root mean square, and by largest element.
    """
    expected = expected.reshape(theirs.shape)
    off, noise = difference(expected, theirs), difference(expected, rounded.reshape(theirs.shape))
    units = [max(noise.relative, epsilon, _LEAST), max(noise.peak, epsilon, _LEAST)]
    return max(off.relative / units[0], off.peak / units[1]), off.relative


def epsilon_of_pair(a: Trace, b: Trace, pair: Pair) -> float:
    """The rounding of the narrower type."""
    return coarsest((a.at(pair.a), b.at(pair.b)))


def between(trace: Trace, last: int, ends: Collection[Place]) -> list[Node]:
    """The node and those that lead to it, back to the outputs in `ends`, in order."""
    return [trace.nodes[index] for index in sorted(trace.with_ancestors([last], ends))]


@dataclass(frozen=True)
class _Segments:
    """The segments of two programs between paired values."""

    a: Trace
    b: Trace
    pairs: Mapping[Place, Pair]

    @cached_property
    def ends(self) -> set[Place]:
        """The paired outputs of B."""
        return {pair.b for pair in self.pairs.values()}

    @cached_property
    def most(self) -> tuple[float, float]:
        """The coarsest rounding that A, and that B, chose: of float32, or of the type that most of the program uses."""
        least = epsilon_of("float32")
        return max(chosen_rounding(self.a), least), max(chosen_rounding(self.b), least)

    def epsilon(self, pair: Pair) -> float:
        """The coarsest rounding of a pair and of the segment that leads to it, more if B approximates a function there. A coarser one than its program
        chose counts only if the other program has it, too.
        """
        of_a = max(node.rounding for node in between(self.a, pair.a[0], self.pairs))
        theirs = between(self.b, pair.b[0], self.ends)
        of_b = max(node.rounding for node in theirs)
        times = 1.0 if all(_FUNCTIONS.isdisjoint(node.concepts) for node in theirs) else _OF_FUNCTIONS
        most_a, most_b = self.most
        chosen = max(min(of_a, max(of_b, most_a)), min(of_b, max(of_a, most_b)))
        return times * max(epsilon_of_pair(self.a, self.b, pair), chosen)


def _by_replay(
    segments: _Segments,
    pair: Pair,
    exact: Replayed | None,
    rough: Replayed | None,
    theirs: Array | None,
    given: float,
) -> Failure | None:
    """Judge B's value by A's operator on B's inputs in float64 and in float32, or by bounds if it could not be run again. `given` is how far the inputs
    then differ.
    """
    a, b = segments.a, segments.b
    expected, rounded = (None if each is None else each.outputs.get(pair.a[1]) for each in (exact, rough))
    if theirs is None or expected is None or rounded is None:
        return _by_bounds(a, b, pair, given)
    epsilon = epsilon_of_pair(a, b, pair)
    times, off = _times_rounding(expected, rounded, theirs, epsilon)
    if times > ROUNDINGS:
        times, off = _times_rounding(expected, rounded, theirs, segments.epsilon(pair))
    one, other = a.nodes[pair.a[0]], b.nodes[pair.b[0]]
    # The compiled call, not the operators in it, made the results that a call returns, and it may round each of them elsewhere.
    is_of_call = one.op.repeats_operators or other.op.repeats_operators
    if times <= ROUNDINGS or (is_of_call and off <= RESULT.of(epsilon)) or _is_next_level(one, other, expected, theirs):
        return None
    return Failure(pair, times, off)


def _is_next_level(one: Node, other: Node, expected: Array, theirs: Array) -> bool:
    """Whether quantised values differ by at most one level: earlier rounding decides between two levels."""
    step = max(_level(one), _level(other))
    apart = np.abs(expected.reshape(theirs.shape).astype(np.float64) - theirs)
    return step > 0 and bool(np.all(apart <= step * _ONE_LEVEL))


def _level(node: Node) -> float:
    """The distance of two levels of an operator's output if it is quantised; otherwise 0."""
    if node.bare_type == "DequantizeLinear" and _SCALE in node.inputs:
        scale = recorded(node.inputs[_SCALE])
        return float(
            node.inputs[_SCALE].statistics.get("max", 0.0) if scale is None else np.abs(scale).max(initial=0.0)
        )
    return 1.0 if any(record.dtype in _BYTES for record in node.outputs.values()) else 0.0


def _level_of_pair(a: Trace, b: Trace, pair: Pair) -> float:
    """The distance of two levels relative to the root mean square, for quantised values with only statistics; otherwise 0."""
    one, other = a.nodes[pair.a[0]], b.nodes[pair.b[0]]
    record = a.at(pair.a)
    norm = float(record.statistics.get("l2norm", 0.0)) if pair.layout is None else 0.0
    return max(_level(one), _level(other)) * math.sqrt(math.prod(record.shape)) / norm if norm else 0.0


def _by_bounds(a: Trace, b: Trace, pair: Pair, inherited: float) -> Failure | None:
    """Judge a pair whose operator in A could not be run: by the distance of the outputs and of the inputs."""
    epsilon = epsilon_of_pair(a, b, pair)
    allowed = max(UNLIKE_FRAMEWORKS.of(epsilon), _BY_STATISTICS if pair.layout is None else 0.0, ROUNDINGS * inherited)
    if pair.distance <= max(allowed, _level_of_pair(a, b, pair)):
        return None
    return Failure(pair, pair.distance / max(epsilon, _LEAST), pair.distance, inherited)


# Wrong kernels and flipped bits: operators of either run whose outputs differ from those of their own inputs in float64.

_A_GOOD_PART: Final = 0.1
"""An operator is the cause only if its own error is at least this share of the difference."""


def wrong_kernel(
    a: Trace, b: Trace, pairs: Mapping[Place, Pair], pair: Pair, off: float, sides: tuple[str, str]
) -> Suspect | None:
    """The first operator between a pair and the pairs before it, in B or else in A, whose output is wrong for its own inputs.

    `off` is the difference of the pair's values.
    """
    ends = set(pairs), {each.b for each in pairs.values()}
    for side, (trace, last) in ((1, (b, pair.b[0])), (0, (a, pair.a[0]))):
        for node in between(trace, last, ends[side]):
            for slot, error in own_errors(node):
                if error < _A_GOOD_PART * off:
                    continue
                both = (a.nodes[pair.a[0]], node) if side else (node, b.nodes[pair.b[0]])
                evidence = f"in {sides[side]}: {told_error(error)}"
                score = error / epsilon_of(node.outputs[slot].dtype)
                return Suspect("kernel", *both, "output", slot, score, evidence)
    return None


def wrong_kernels(
    a: Trace, b: Trace, pairs: Mapping[Place, Pair], doubtful: Iterable[Pair], sides: tuple[str, str]
) -> list[Suspect]:
    """The wrong kernels of several pairs, each pair of operators once."""
    found: dict[tuple[Node | None, Node | None], Suspect] = {}
    for pair in doubtful:
        suspect = wrong_kernel(a, b, pairs, pair, pair.distance, sides)
        if suspect is not None:
            found.setdefault((suspect.a, suspect.b), suspect)
    return list(found.values())


# Which operator in a failing segment causes the difference.

_OTHER_ARGUMENTS: Final[Mapping[str, Sequence[Any]]] = {
    "eps": (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-12, 0.0),
    "epsilon": (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-12, 0.0),
}
"""Values that frameworks use for an argument."""
_ARGUMENTS_OF: Final[Mapping[str, tuple[str, Sequence[Any]]]] = {"gelu": ("approximate", ("none", "tanh"))}
"""The same for arguments that a record omits at their default."""
_EXPLAINS: Final = 4.0
"""A change explains a difference if it leaves at most this many roundings, and reduces it at least by this factor."""
_FAR: Final = 0.25
"""A change that leaves a larger part of the value explains nothing, however large the effect of rounding is."""
_REORDERS: Final = frozenset({"ReorderInput", "ReorderOutput"})
"""Operators of ONNX Runtime between kernels with another order of elements. They are not part of the program."""
_MOST_CHANGES: Final = 128
_CLOSE: Final = 1e-4
"""Inputs of two operators that differ by at most this, relative to their size, are the same except for rounding."""
_MOST_LISTED: Final = 6
_SCALED: Final = 1e-5
"""Channels count as scaled if the remaining relative difference is below this."""
_CHOOSES: Final = frozenset({"MaxPool", "MaxPool3D", "AdaptiveMaxPool2D", "ClipByValue", "NanToNum", "Select"})
"""Concepts that pass elements on unchanged, and can still be the cause of a difference."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A change to A's program, and what to report if it produces B's value."""

    kind: Kind
    node: Node
    evidence: str
    slot: int = 0
    op: Node | None = None
    """The node with changed arguments."""
    values: Array | None = None
    """The changed input at `slot`."""
    passes: int | None = None
    """The slot of the input that the node only passes on."""
    other: Node | None = None
    """The operator of B to report with it."""
    told: Node | None = None
    """The operator of A to report instead of `node`."""

    def slots_of(self, node: Node) -> list[int]:
        """The slots at which a node reads the changed tensor."""
        changed, maker = self.node.inputs[self.slot], self.node.makers.get(self.slot)
        if maker is not None:
            return [slot for slot, each in node.makers.items() if each == maker]
        name = leaf_name(changed)
        if not name:
            return [self.slot] if node is self.node else []
        return [slot for slot, each in node.inputs.items() if (leaf_name(each), each.shape) == (name, changed.shape)]


def named(
    a: Trace,
    b: Trace,
    pairs: Mapping[Place, Pair],
    failure: Failure,
    inputs: Mapping[int, Mapping[int, Array]] | None,
    sides: tuple[str, str] = ("A", "B"),
) -> Suspect:
    """The operator that causes the difference: one that produces B's value if changed, or reads a parameter that B lacks; else one without a
    counterpart; else the last.

    `inputs` are those of the nodes of A in this segment, if A runs on B's values; if None, no operator is changed. `sides` are the names of the two
    runs in messages.
    """
    pair = failure.pair
    ours = between(a, pair.a[0], pairs)
    theirs = between(b, pair.b[0], {each.b for each in pairs.values()})
    other = next((node for node in reversed(theirs) if node.bare_type not in _REORDERS), b.nodes[pair.b[0]])
    how = _how(failure, ours, theirs, sides)
    found: _Change | None = None
    if failure.given is None and inputs is not None:
        segment = _Segment(a, b, pair, ours, inputs)
        changes = itertools.chain(_turned_inputs(a, b, pairs, ours, sides), _changes(ours, theirs, sides))
        found = segment.explained(changes, failure.times)
    found = found or _odd_parameter(ours, theirs, sides)
    if found is not None:
        io: IO = "input" if found.kind == "parameter" else "output"
        evidence = f"{found.evidence}; {how}"
        one, slot = (found.node, found.slot) if found.told is None else (found.told, 0)
        if found.other is not None and not found.other.inputs:
            # B has a constant, such as the gradient of what it does not use, and A computes a value: from its first operator that B lacks.
            one = next(iter(_without_counterpart(ours, theirs)), one)
        first = _first_apart(a, b, found, {node.index for node in theirs})
        if first is not None:
            return Suspect(*_computing_first(a, b, first, ours, theirs), "output", 0, failure.times, evidence)
        return Suspect(found.kind, one, found.other or other, io, slot, failure.times, evidence)
    kind, one, another = _lone_operators(ours, theirs, other)
    return Suspect(kind, one, another, "output", 0, failure.times, how)


def _first_apart(a: Trace, b: Trace, found: _Change, segment: Collection[int]) -> tuple[Node, Node] | None:
    """The operators of A and of B that an explaining value of B leads back to, as long as operators of one kind differ in one input; None if it
    leads to no other.
    """
    maker = found.node.makers.get(found.slot)
    if found.values is None or found.other is None or maker is None:
        return None
    one, other = a.nodes[maker[0]], found.other
    given = depend_on_data(a), depend_on_data(b)
    while same_kind(one, other):
        slots = [slot for slot in one.inputs.keys() & other.inputs.keys() if not _are_close(one, other, slot)]
        ours, theirs = (node.makers.get(slots[0]) if len(slots) == 1 else None for node in (one, other))
        if theirs is None or theirs[0] not in segment:
            break
        if ours is not None and (ours[0] in given[0]) != (theirs[0] in given[1]):
            break  # a computed value and a parameter are different operands
        other = b.nodes[theirs[0]]
        if ours is None:
            break
        one = a.nodes[ours[0]]
    return None if other is found.other else (one, other)


def _computing_first(
    a: Trace, b: Trace, first: tuple[Node, Node], ours: Collection[Node], theirs: Collection[Node]
) -> tuple[Kind, Node, Node]:
    """The operators whose outputs two operators move, and the kind of the difference: only one program may have such an operator in its segment."""
    one, other = _computing(a, first[0], ours), _computing(b, first[1], theirs)
    kind: Kind = "operator" if (one is None) == (other is None) else "missing" if other is None else "extra"
    return kind, one or first[0], other or first[1]


def _computing(trace: Trace, node: Node, segment: Collection[Node]) -> Node | None:
    """The operator of a segment whose output a node only moves, or the node itself; None if it moves what was made before the segment."""
    inside = {each.index for each in segment}
    while node.arranges:
        maker = node.makers.get(0)
        if maker is None or maker[0] not in inside:
            return None
        node = trace.nodes[maker[0]]
    return node


def _are_close(one: Node, other: Node, slot: int) -> bool:
    off = distance(one.inputs[slot], other.inputs[slot])
    return off is not None and off <= _CLOSE


def _lone_operators(ours: Sequence[Node], theirs: Sequence[Node], other: Node) -> tuple[Kind, Node, Node]:
    """The last operators of A and of B without a counterpart, and the kind of the difference. `other` is the last operator of B."""
    alone, others = _without_counterpart(ours, theirs), _without_counterpart(theirs, ours)
    if len(ours) == 1 and not alone and len(others) == 1:
        return "extra", ours[0], others[0]
    # A batch norm has no counterpart if the other side folded it into a convolution.
    likely = [node for node in alone if not is_batch_norm(node)] if others else []
    return "operator", (likely or alone or ours)[-1], others[-1] if alone and others else other


def is_batch_norm(node: Node) -> bool:
    """Whether the operator is a batch norm."""
    return "BatchNorm" in node.concepts


def _how(failure: Failure, ours: Sequence[Node], theirs: Sequence[Node], sides: tuple[str, str]) -> str:
    if failure.given is not None:
        return (
            f"its inputs agree to {failure.given:.2g}, its output differs by {failure.off:.2g} of its size; it could not be run again, "
            "so whether rounding explains this is not proven"
        )
    return (
        f"for the same values, {_listed(theirs)} in {sides[1]} differs by {failure.off:.2g} of its size from {_listed(ours)} in {sides[0]} "
        f"in float64, {failure.times:,.0f} times the effect of rounding"
    )


def _listed(nodes: Sequence[Node]) -> str:
    types = [node.bare_type for node in nodes]
    return " + ".join(types) if len(types) <= _MOST_LISTED else f"{' + '.join(types[:2])} + ... + {types[-1]}"


def _without_counterpart(ours: Sequence[Node], theirs: Sequence[Node]) -> list[Node]:
    """The nodes for which no node of the same kind is left on the other side, without those that compute shapes or move elements."""
    free = list(theirs)
    alone = []
    for node in ours:
        partner = next((each for each in free if same_kind(node, each)), None)
        if partner is not None:
            free.remove(partner)
        elif _computes(node):
            alone.append(node)
    return alone


def _computes(node: Node) -> bool:
    """Whether the operator computes new floating-point values, rounds them to a narrower type, or chooses among its inputs."""
    if not node.rounding:
        return False
    if node.operator_class == "casts":
        return 0 < coarsest(node.inputs.values()) < node.rounding
    return bool(node.concepts & _CHOOSES) or not node.arranges


def _turned_inputs(
    a: Trace, b: Trace, pairs: Mapping[Place, Pair], ours: Sequence[Node], sides: tuple[str, str]
) -> Iterator[_Change]:
    """The changes with which operators of A read an input in the order of B: a transposed matrix was matched with the matrix, but is another operand."""
    for node in ours:
        for slot, maker in node.makers.items():
            pair = pairs.get(maker)
            if pair is None or a.at(maker).shape != b.at(pair.b).shape:
                continue
            turned, values = value_in_a(b, pair), recorded(b.at(pair.b))
            if turned is None or values is None or same_bits(turned, values):
                continue
            evidence = f"{node.bare_type} of {sides[0]} makes {sides[1]}'s result of this output in {sides[1]}'s order"
            told, other = a.nodes[maker[0]], b.nodes[pair.b[0]]
            yield _Change("operator", node, evidence, slot, values=values, other=other, told=told)


def _changes(ours: Sequence[Node], theirs: Sequence[Node], sides: tuple[str, str]) -> Iterator[_Change]:
    """Changes that may explain the difference, the likeliest first."""
    for node in ours:
        for name, values in _choices(node):
            old = node.arguments.get(name, values[0])
            for value in values:
                if value != old:
                    changed = replace(node, op=replace(node.op, arguments={**node.op.arguments, name: value}))
                    evidence = f"{name}: {old} in {sides[0]}, as if {value} in {sides[1]}"
                    yield _Change("argument", node, evidence, op=changed)
    yield from _other_parameters(ours, theirs, sides)
    alone, others = _without_counterpart(ours, theirs), _without_counterpart(theirs, ours)
    values = list(_values(theirs))
    yield from _passing(alone, sides)
    for other, record in values:
        if other in others:
            yield from _read_instead(ours, other, record, sides, "extra")
    yield from _passing([each for each in ours if each not in alone], sides)
    for other, record in values:
        if other not in others:
            yield from _read_instead(ours, other, record, sides, "operator")


def _passing(nodes: Iterable[Node], sides: tuple[str, str]) -> Iterator[_Change]:
    """The changes with which operators pass on an input."""
    for node in nodes:
        for slot in _passed(node):
            yield _Change("missing", node, f"has no counterpart in {sides[1]}", passes=slot)


def _passed(node: Node) -> list[int]:
    """The inputs that an operator may pass on instead of its output."""
    made = node.outputs.get(0)
    if made is None or _only_moves(node):
        return []
    return [slot for slot, each in node.inputs.items() if each.shape == made.shape and epsilon_of(each.dtype)]


def _only_moves(node: Node) -> bool:
    """Whether the operator moves the elements of one tensor. One that moves elements by a mask or by indices does more."""
    return node.arranges and sum(math.prod(each.shape) > 1 for each in node.inputs.values()) <= 1


def _values(nodes: Sequence[Node]) -> Iterator[tuple[Node, TensorRecord]]:
    """The values between common ones, in order, without those of the last operator: inputs that no operator produced, with their reader, and outputs."""
    for node in nodes:
        yield from (
            (node, record) for slot, record in node.inputs.items() if slot not in node.makers and not leaf_name(record)
        )
        if node is not nodes[-1]:
            yield from ((node, record) for record in node.outputs.values())


def _read_instead(
    ours: Sequence[Node], other: Node, value: TensorRecord, sides: tuple[str, str], kind: Kind
) -> Iterator[_Change]:
    """The changes with which operators of A read a value of B instead of one of A."""
    size = math.prod(value.shape)
    if size == 1 or not has_elements(value) or _only_moves(other):
        return
    makers = {node.index: node for node in ours}
    seen: set[Place] = set()
    for node in ours:
        for slot, record in node.inputs.items():
            place = node.makers.get(slot, (node.index, ~slot))
            if place in seen or _only_moves(node) or not has_elements(record):
                continue
            seen.add(place)
            if math.prod(record.shape) != size or record.dtype != value.dtype:
                continue
            found = likely_layout(record.numpy(), value.numpy())
            if found is not None:
                evidence = f"{node.bare_type} of {sides[0]} produces {sides[1]}'s result from {sides[1]}'s value"
                told = makers.get(place[0], node) if place[1] >= 0 else node
                values = found[0].apply(value.numpy())
                yield _Change(kind, node, evidence, slot, values=values, other=other, told=told)


def _other_parameters(ours: Sequence[Node], theirs: Sequence[Node], sides: tuple[str, str]) -> Iterator[_Change]:
    leaves = list(_once(_leaves(theirs)))
    names = {leaf_name(leaf) for _, _, leaf in leaves} - {""}
    for node, slot, record in _once(_leaves(ours)):
        mine = record.numpy()
        if mine.size == 1 and leaf_name(record) in names:
            continue  # B reads it too, and one number, such as a momentum of 0, explains anything
        for other, _, leaf in leaves:
            if math.prod(leaf.shape) != mine.size or leaf.dtype != record.dtype:
                continue
            found = likely_layout(mine, leaf.numpy())
            if found is None or same_bits(values := found[0].apply(leaf.numpy()), mine):
                continue
            name = leaf_name(record) or f"input {slot}"
            evidence = (
                f"{name} differs by {found[1]:.2g} of its size from {leaf_name(leaf) or 'the input'} in {sides[1]}"
            )
            yield _Change("parameter", node, evidence, slot, values=values, other=_first_to_compute(other, theirs))


def _odd_parameter(ours: Sequence[Node], theirs: Sequence[Node], sides: tuple[str, str]) -> _Change | None:
    """A parameter of A that B seems to lack, and that cannot be substituted: packed with others, or scaled by a folded batch norm."""
    leaves = list(_once(_leaves(theirs)))
    for node, slot, record in _once(_leaves(ours)):
        mine = record.numpy()
        name = leaf_name(record)
        if mine.ndim < 2 or mine.dtype.kind != "f" or not name:
            continue
        for other, _, leaf in leaves:
            if leaf_name(leaf) == name and leaf.shape == record.shape and not _is_scaled(mine, leaf.numpy()):
                evidence = f"{name} has different elements in {sides[1]}, even if its channels are scaled"
                return _Change("parameter", node, evidence, slot, other=_first_to_compute(other, theirs))
        for turned in (mine, mine.T):
            held = {row.tobytes() for _, _, leaf in leaves for row in _rows(leaf.numpy(), turned)}
            rows = _rows(turned, turned)
            missing = sum(row.tobytes() not in held for row in rows)
            if 0 < missing <= len(rows) // 2:
                evidence = f"{missing:,} of {len(rows):,} rows of {name} are in no parameter that {sides[1]} reads here"
                return _Change("parameter", node, evidence, slot)
    return None


def _rows(array: Array, like: Array) -> Array:
    """The rows of a tensor; none if their length or dtype differs from that of `like`."""
    length = like.shape[-1]
    fits = array.ndim > 1 and array.dtype == like.dtype and array.shape[-1] == length
    return np.ascontiguousarray(array).reshape(-1, length) if fits else np.empty((0, length), like.dtype)


def _is_scaled(one: Array, other: Array) -> bool:
    """Whether each channel of `other` is that of `one` times a factor."""
    x, y = (array.reshape(len(array), -1).astype(np.float64) for array in (one, other))
    squares = np.sum(x * x, axis=1, keepdims=True)
    factors = np.divide(np.sum(x * y, axis=1, keepdims=True), squares, out=np.zeros_like(squares), where=squares > 0)
    return difference(y, factors * x).relative < _SCALED


def _first_to_compute(reader: Node, nodes: Sequence[Node]) -> Node:
    """The first operator, from the reader on, that does more than move its input; one that moves by indices does."""
    reached = {reader.index}
    for node in nodes:
        if node.index in reached or any(maker in reached for maker, _ in node.makers.values()):
            if _computes(node) or (node.operator_class == "moves" and not _only_moves(node)):
                return node
            reached.add(node.index)
    return reader


def _once(leaves: Iterable[tuple[Node, int, TensorRecord]]) -> Iterator[tuple[Node, int, TensorRecord]]:
    """The leaves, each name and shape only at its first reader: a recurrent network reads its weights at every position."""
    seen: set[tuple[str, tuple[int, ...]]] = set()
    for node, slot, record in leaves:
        key = leaf_name(record), record.shape
        if not key[0] or key not in seen:
            seen.add(key)
            yield node, slot, record


def _leaves(nodes: Sequence[Node]) -> Iterator[tuple[Node, int, TensorRecord]]:
    """The inputs that no operator produced, with their reader and slot."""
    for node in nodes:
        for slot, record in node.inputs.items():
            if slot not in node.makers and has_elements(record):
                yield node, slot, record


def _choices(node: Node) -> Iterator[tuple[str, Sequence[Any]]]:
    """The arguments to vary, with the values to try."""
    yield from ((name, values) for name, values in _OTHER_ARGUMENTS.items() if name in node.arguments)
    if node.bare_type.lower() in _ARGUMENTS_OF:
        yield _ARGUMENTS_OF[node.bare_type.lower()]


@dataclass(frozen=True, slots=True)
class _Segment:
    """A's operators of one segment with their inputs, and the pair with B's value that they should produce."""

    a: Trace
    b: Trace
    pair: Pair
    nodes: Sequence[Node]
    inputs: Mapping[int, Mapping[int, Array]]
    _unchanged: dict[str, dict[int, Mapping[int, Array]]] = field(default_factory=dict)
    """The outputs of the nodes without a change, by element type and node."""

    def explained(self, changes: Iterator[_Change], times: float) -> _Change | None:
        """The first change with which A produces B's value."""
        theirs = value_in_a(self.b, self.pair)
        if theirs is None:
            return None
        own = max(node.rounding for node in self.nodes)
        epsilon = max(epsilon_of_pair(self.a, self.b, self.pair), own)
        for change in itertools.islice(changes, _MOST_CHANGES):
            exact = self._run(change, "float64")
            if (
                exact is None
                or exact.size != theirs.size
                or difference(theirs, exact.reshape(theirs.shape)).relative > _FAR
            ):
                continue
            rounded = self._run(change, "float32")
            if rounded is None:
                continue
            left, _ = _times_rounding(exact, rounded, theirs, epsilon)
            if left <= _EXPLAINS and left * _EXPLAINS <= times:
                return change
        return None

    def _run(self, change: _Change, dtype: str) -> Array | None:
        """The segment's value with a change. Operators before it are run only once for all changes."""
        run = Execution(self.a)
        outputs: Mapping[int, Array] = {}
        unchanged = self._unchanged.setdefault(dtype, {})
        is_before = True
        for node, values in run.nodes(lambda node, slot: self.inputs[node.index].get(slot), only=self.nodes):
            is_changed = node is change.node
            replaced = self._replaced(change, node)
            is_before = is_before and not (is_changed or replaced)
            values.update(replaced)
            if is_before and node.index in unchanged:
                outputs = unchanged[node.index]
            elif is_changed and change.passes is not None:
                if change.passes not in values:
                    return None
                outputs = {0: values[change.passes]}
            else:
                done = replay(change.op if is_changed and change.op is not None else node, values, dtype)
                if done is None:
                    return None
                outputs = done.outputs
            if is_before:
                unchanged[node.index] = outputs
            run.write(node, outputs)
        return outputs.get(self.pair.a[1])

    def _replaced(self, change: _Change, node: Node) -> dict[int, Array]:
        """The inputs of a node that a change replaces."""
        if change.values is None:
            return {}
        # A node may read the whole stack of which the changed values are a row.
        size, changed = change.values.size, widened(change.values)
        return {slot: changed for slot in change.slots_of(node) if math.prod(node.inputs[slot].shape) == size}
