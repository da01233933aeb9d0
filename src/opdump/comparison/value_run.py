"""Runs A's program on B's values, from one value that both have to the next, and tells which of B's values are not what A makes of them.

What A computes between two such places is run in float64, and once in float32, which tells what rounding makes of it. So nothing of an
earlier difference plays a part, and B's operators need not be run at all.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.differences import difference, epsilon_of
from opdump.comparison.execution import Execution, recorded, replay
from opdump.comparison.nodes import Node
from opdump.comparison.precision import chosen_rounding, coarsest
from opdump.comparison.trace import Trace
from opdump.comparison.value_matching import Pair, Place

Array = NDArray[Any]

ROUNDINGS: Final = 16.0
"""How many times further off than rounding makes A's operators a value of B may be: it may round at other places."""
_BOUND: Final = 1024.0
"""Units of the element type that an operator of equal inputs may be off, where nothing could be run again."""
_NARROW_BOUND: Final = 16.0
"""The same of types narrower than float32, in which few operators add up."""
_BY_STATISTICS: Final = 1e-3
_BYTES: Final = frozenset({"int8", "uint8"})
_SCALE: Final = 1
"""The slot of what a level is worth."""
_ONE_LEVEL: Final = 1.01
"""A level of a quantised value, and what float32 rounds of it."""
_LEAST: Final = 2.0**-52
"""The unit of types that are exact."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A value of B that is not what A makes of the values before it."""

    pair: Pair
    times: float
    """How far off, in units of what rounding makes of it."""
    off: float
    """The same, relative to the root mean square."""
    given: float | None = None
    """Where A's operator could not be run again: how far apart the two runs are in what it is given."""


@dataclass(slots=True)
class ValueRun:
    """What came of a run of A on B's values."""

    failures: list[Failure] = field(default_factory=list)
    not_run: set[str] = field(default_factory=set)
    inputs: dict[int, dict[int, Array]] = field(default_factory=dict)
    """What the nodes were given whose inputs are kept."""


def run_on_values(
    a: Trace,
    b: Trace,
    pairs: Mapping[Place, Pair],
    keep: Collection[int] = (),
    drifted: Mapping[Place, Array] = MappingProxyType({}),
) -> ValueRun:
    """Runs A's nodes in order; B's value takes over wherever there is a pair. The inputs of the nodes in `keep` are kept.

    The run that tells what rounding makes begins with `drifted` inputs, which rounding of the steps before has moved.
    """
    run = ValueRun()
    exact, rounded = Execution(a), Execution(a)
    inherited: dict[int, float] = {}
    """How far apart the two runs are in what a node was given, of those that could not be run again."""
    for node in a.nodes:
        own = {slot: recorded(record) for slot, record in node.inputs.items() if not record.skip}
        moved = {slot: drifted.get((node.index, slot), leaf) for slot, leaf in own.items()}
        values, rough = (
            {slot: value for slot, leaf in leaves.items() if (value := each.look_up(node, slot, leaf)) is not None}
            for each, leaves in ((exact, own), (rounded, moved))
        )
        if node.index in keep:
            run.inputs[node.index] = values
        done, again = replay(node, values), replay(node, rough, "float32")
        given = {slot: value for slot, record in node.outputs.items() if (value := recorded(record)) is not None}
        outputs = given if done is None else dict(done.outputs)
        rough_outputs = dict(given) if again is None else dict(again.outputs)
        if done is None:
            run.not_run.add(node.op.kernel or node.op.op_type)
            inherited[node.index] = max(
                (
                    pairs[maker].distance if maker in pairs else inherited.get(maker[0], 0.0)
                    for maker in node.makers.values()
                ),
                default=0.0,
            )
        for slot in node.outputs:
            pair = pairs.get((node.index, slot))
            if pair is None:
                continue
            theirs = value_in_a(b, pair)
            if theirs is None or done is None or again is None or slot not in done.outputs or slot not in again.outputs:
                failure = _by_bounds(a, b, pair, inherited.get(node.index, 0.0))
            else:
                failure = _by_replay(a, b, pairs, pair, done.outputs[slot], again.outputs[slot], theirs)
                if failure is not None and _is_next_level(node, b.nodes[pair.b[0]], done.outputs[slot], theirs):
                    failure = None
            if failure is not None:
                run.failures.append(failure)
            if theirs is not None:
                outputs[slot] = rough_outputs[slot] = theirs
        exact.write(node, outputs)
        rounded.write(node, rough_outputs)
    return run


def value_in_a(b: Trace, pair: Pair) -> Array | None:
    """B's value of a pair in A's layout; None where there are statistics alone."""
    values = recorded(b.nodes[pair.b[0]].outputs[pair.b[1]])
    return None if values is None or pair.layout is None else pair.layout.apply(values)


def in_roundings(expected: Array, rounded: Array, theirs: Array, epsilon: float) -> tuple[float, float]:
    """How far a value is from the expected one, in units of rounding and relative to its size; by the root mean square, or by the largest
    element where that is further.
    """
    expected = expected.reshape(theirs.shape)
    off, noise = difference(expected, theirs), difference(expected, rounded.reshape(theirs.shape))
    units = [max(noise.relative, epsilon, _LEAST), max(noise.peak, epsilon, _LEAST)]
    return max(off.relative / units[0], off.peak / units[1]), off.relative


def epsilon_of_pair(a: Trace, b: Trace, pair: Pair) -> float:
    """The rounding of the narrower type."""
    ours, theirs = a.nodes[pair.a[0]].outputs[pair.a[1]], b.nodes[pair.b[0]].outputs[pair.b[1]]
    return max(epsilon_of(ours.dtype), epsilon_of(theirs.dtype))


def between(trace: Trace, last: int, ends: Collection[Place]) -> list[Node]:
    """The nodes that lead to this one, back to the outputs that both runs have, in order."""
    return [trace.nodes[index] for index in sorted(trace.with_ancestors([last], ends))]


def epsilon_of_stretch(a: Trace, b: Trace, pairs: Mapping[Place, Pair], pair: Pair) -> float:
    """The rounding of the narrowest type on the way to a pair from those before it: of A, which is what should be given, of B's values, and of
    what B's own choice of a type is.
    """
    of_a = coarsest(record for node in between(a, pair.a[0], pairs) for record in node.outputs.values())
    of_b = coarsest(
        record
        for node in between(b, pair.b[0], {each.b for each in pairs.values()})
        for record in node.outputs.values()
    )
    return max(epsilon_of_pair(a, b, pair), of_a, min(of_b, max(chosen_rounding(b), epsilon_of("float32"))))


def _by_replay(
    a: Trace, b: Trace, pairs: Mapping[Place, Pair], pair: Pair, expected: Array, rounded: Array, theirs: Array
) -> Failure | None:
    epsilon = epsilon_of_pair(a, b, pair)
    times, off = in_roundings(expected, rounded, theirs, epsilon)
    if times > ROUNDINGS:
        times, off = in_roundings(expected, rounded, theirs, epsilon_of_stretch(a, b, pairs, pair))
    return Failure(pair, times, off) if times > ROUNDINGS else None


def _is_next_level(one: Node, other: Node, expected: Array, theirs: Array) -> bool:
    """Whether a quantised value is one level off at most: rounding before it decides between the two."""
    step = max(_level(one), _level(other))
    apart = np.abs(expected.reshape(theirs.shape).astype(np.float64) - theirs)
    return step > 0 and bool(np.all(apart <= step * _ONE_LEVEL))


def _level(node: Node) -> float:
    """By how much two neighbours of the values that an operator gives differ, if they are quantised; 0 of others."""
    if node.bare_type == "DequantizeLinear" and _SCALE in node.inputs:
        scale = recorded(node.inputs[_SCALE])
        return float(
            node.inputs[_SCALE].statistics.get("max", 0.0) if scale is None else np.abs(scale).max(initial=0.0)
        )
    return 1.0 if any(record.dtype in _BYTES for record in node.outputs.values()) else 0.0


def _level_of_pair(a: Trace, b: Trace, pair: Pair) -> float:
    """A level of quantised values of which there are statistics alone, relative to their root mean square."""
    one, other = a.nodes[pair.a[0]], b.nodes[pair.b[0]]
    record = one.outputs[pair.a[1]]
    norm = float(record.statistics.get("l2norm", 0.0)) if pair.layout is None else 0.0
    return max(_level(one), _level(other)) * math.sqrt(math.prod(record.shape)) / norm if norm else 0.0


def _by_bounds(a: Trace, b: Trace, pair: Pair, inherited: float) -> Failure | None:
    """Where A's operator could not be run: what is given agrees, and what comes of it does not by any rounding."""
    epsilon = epsilon_of_pair(a, b, pair)
    bound = _BOUND if epsilon <= epsilon_of("float32") else _NARROW_BOUND
    allowed = max(bound * epsilon, _BY_STATISTICS if pair.layout is None else 0.0, ROUNDINGS * inherited)
    if pair.distance <= max(allowed, _level_of_pair(a, b, pair)):
        return None
    return Failure(pair, pair.distance / max(epsilon, _LEAST), pair.distance, inherited)
