"""Compares runs of two frameworks: A's program is run on B's values, from one value that both have to the next.

Where both runs have the same value (`value_matching`), B's is taken from there on, in A's layout. What A computes between two such places is
run again in float64, and once in float32, which tells what rounding makes of it. Where B's value is further off than that, B computes
something else there. So nothing of an earlier difference plays a part, and B's operators need not be run again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from numpy.typing import NDArray

from opdump.adapters.replay import replayer_of
from opdump.comparison.differences import Difference, difference, epsilon_of
from opdump.comparison.execution import Execution, recorded, replay
from opdump.comparison.suspects import Suspect
from opdump.comparison.trace import Trace
from opdump.comparison.value_matching import Pair, Place, match_values

Array = NDArray[Any]

_ROUNDINGS: Final = 64.0
"""How many times further off than rounding makes A's operators a value of B may be: it may round at other places."""
_BOUND: Final = 1024.0
"""Units of the element type that an operator of equal inputs may be off, where nothing could be run again."""
_BY_STATISTICS: Final = 1e-3
_LEAST: Final = 2.0**-52
"""The unit of types that are exact."""


@dataclass(slots=True)
class Outcome:
    """What is found of two traces."""

    pairs: Mapping[Place, Pair]
    suspects: list[Suspect] = field(default_factory=list)
    matched: int = 0
    unmatched: int = 0
    inherited: int = 0
    not_run: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def of_different_frameworks(a: Trace, b: Trace) -> bool:
    """Whether the two runs share no vocabulary: hardly an operator of either is called as one of the other."""
    ours, theirs = ({node.op.kernel or node.op.op_type for node in trace.nodes} for trace in (a, b))
    return bool(ours and theirs) and len(ours & theirs) * 4 < min(len(ours), len(theirs))


def compare_across(a: Trace, b: Trace) -> Outcome:
    """Matches two traces by values, and judges each value that both have."""
    if _can_run(b) > _can_run(a):
        found = compare_across(b, a)
        found.suspects = [replace(each, a=each.b, b=each.a) for each in found.suspects]
        return found
    found = Outcome(match_values(a, b))
    _run_on_values(a, b, found)
    _count(a, b, found)
    return found


def _can_run(trace: Trace) -> bool:
    """Whether operators of a run can be run again."""
    return any(replayer_of(node.op) for node in trace.nodes)


def _run_on_values(a: Trace, b: Trace, found: Outcome) -> None:
    exact, rounded = Execution(a), Execution(a)
    inherited: dict[int, float] = {}
    """How far apart the values are that a node was given, of those that could not be run on the same."""
    for node in a.nodes:
        own = {slot: recorded(record) for slot, record in node.inputs.items() if not record.skip}
        values, rough = (
            {slot: value for slot, leaf in own.items() if (value := run.look_up(node, slot, leaf)) is not None}
            for run in (exact, rounded)
        )
        done, again = replay(node, values), replay(node, rough, "float32")
        given = {slot: value for slot, record in node.outputs.items() if (value := recorded(record)) is not None}
        outputs = given if done is None else dict(done.outputs)
        rough_outputs = given if again is None else dict(again.outputs)
        if done is None:
            found.not_run.add(node.op.kernel or node.op.op_type)
            inherited[node.index] = max(
                (_apart(maker, found.pairs, inherited) for maker in node.makers.values()), default=0.0
            )
        for slot in node.outputs:
            pair = found.pairs.get((node.index, slot))
            if pair is None:
                continue
            theirs = None if pair.layout is None else pair.layout.apply(_recorded_output(b, pair.b))
            if theirs is None or done is None or again is None or slot not in done.outputs or slot not in again.outputs:
                suspect = _suspect_by_bounds(a, b, pair, inherited.get(node.index, 0.0))
            else:
                suspect = _suspect(a, b, pair, done.outputs[slot], again.outputs[slot], theirs)
            if suspect is not None:
                found.suspects.append(suspect)
            if theirs is not None:
                outputs[slot] = rough_outputs[slot] = theirs
        exact.write(node, outputs)
        rounded.write(node, rough_outputs)


def _apart(maker: Place, pairs: Mapping[Place, Pair], inherited: Mapping[int, float]) -> float:
    return pairs[maker].distance if maker in pairs else inherited.get(maker[0], 0.0)


def _suspect_by_bounds(a: Trace, b: Trace, pair: Pair, inherited: float) -> Suspect | None:
    """Where A's operator could not be run: what is given agrees, and what comes of it does not by any rounding."""
    node, other = a.nodes[pair.a[0]], b.nodes[pair.b[0]]
    epsilon = max(epsilon_of(node.outputs[pair.a[1]].dtype), epsilon_of(other.outputs[pair.b[1]].dtype))
    allowed = max(_BOUND * epsilon, _BY_STATISTICS if pair.layout is None else 0.0, _ROUNDINGS * inherited)
    if pair.distance <= allowed:
        return None
    what = f"what it is given agrees to {inherited:.2g}, what it gives differs by {pair.distance:.2g} of its size; it could not be run again"
    return Suspect("operator", node, other, "output", pair.b[1], pair.distance / epsilon if epsilon else math.inf, what)


def _recorded_output(trace: Trace, place: Place) -> Array:
    values = recorded(trace.nodes[place[0]].outputs[place[1]])
    assert values is not None, "it was matched by its elements"
    return values


def _suspect(a: Trace, b: Trace, pair: Pair, expected: Array, rounded: Array, theirs: Array) -> Suspect | None:
    node, other = a.nodes[pair.a[0]], b.nodes[pair.b[0]]
    record, there = node.outputs[pair.a[1]], other.outputs[pair.b[1]]
    epsilon = max(epsilon_of(record.dtype), epsilon_of(there.dtype))
    expected = expected.reshape(theirs.shape)
    off, noise = difference(expected, theirs), difference(expected, rounded.reshape(theirs.shape))
    times = _times(off, noise, epsilon)
    if times <= _ROUNDINGS:
        return None
    what = f"gives {off.relative:.2g} of its size something else than A's operators give for the same values in float64, which is {times:.2g} times what rounding makes of it"
    return Suspect("operator", node, other, "output", pair.b[1], times, what)


def _times(off: Difference, noise: Difference, epsilon: float) -> float:
    """A difference in units of rounding, by its root mean square and by its largest element."""
    return max(by / max(unit, epsilon, _LEAST) for by, unit in ((off.relative, noise.relative), (off.peak, noise.peak)))


def _count(a: Trace, b: Trace, found: Outcome) -> None:
    """Counts the operators whose values the other run has, those that lead to one, and those that lead to no result of the other program."""
    places = found.pairs.values()
    direct = {pair.a[0] for pair in places}, {pair.b[0] for pair in places}
    ours, theirs = _with_ancestors(a, direct[0]), _with_ancestors(b, direct[1])
    left_a, left_b = len(a.nodes) - len(ours), len(b.nodes) - len(theirs)
    unused_a = left_a if _results(b) <= theirs else 0
    unused_b = left_b if _results(a) <= ours else 0
    found.matched = len(ours) + unused_a
    found.unmatched = left_a - unused_a + left_b - unused_b
    between = f"{len(ours) - len(direct[0]):,} of A and {len(theirs) - len(direct[1]):,} of B lie between them"
    unused = (
        f"; {unused_a:,} of A and {unused_b:,} of B lead to no result of the other program"
        if unused_a or unused_b
        else ""
    )
    found.notes.append(
        f"the runs are of different frameworks, so operators were matched by values: {len(direct[0]):,} of A have the values "
        f"of {len(direct[1]):,} of B, {between}{unused}"
    )


def _results(trace: Trace) -> set[int]:
    """The operators whose outputs no other reads."""
    return {node.index for node in trace.nodes} - {maker for node in trace.nodes for maker, _ in node.makers.values()}


def _with_ancestors(trace: Trace, nodes: Iterable[int]) -> set[int]:
    """These nodes, and those that they depend on."""
    found: set[int] = set()
    waiting = list(nodes)
    while waiting:
        index = waiting.pop()
        if index not in found:
            found.add(index)
            waiting += [maker for maker, _ in trace.nodes[index].makers.values()]
    return found
