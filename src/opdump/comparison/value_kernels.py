"""Which operators of two frameworks give something else than their own inputs do in float64: wrong kernels, bits that flipped in an output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np

from opdump.comparison.differences import epsilon_of
from opdump.comparison.execution import recorded, recorded_inputs, replay
from opdump.comparison.kernel_accuracy import allowed_error, error_of
from opdump.comparison.nodes import Node
from opdump.comparison.suspects import Suspect
from opdump.comparison.trace import Trace
from opdump.comparison.value_matching import Pair, Place
from opdump.comparison.value_run import between
from opdump.op_types.unspecified import unspecified_outputs

_A_GOOD_PART: Final = 0.1
"""So much of a difference has to be an operator's own for it to be the cause."""


def wrong_kernel(
    a: Trace, b: Trace, pairs: Mapping[Place, Pair], pair: Pair, off: float, sides: tuple[str, str]
) -> Suspect | None:
    """The first operator, in B or in A, between a pair of values and those before it, whose own inputs give something else.

    `off` is how far the two values are apart.
    """
    ends = set(pairs), {each.b for each in pairs.values()}
    for side, (trace, last) in ((1, (b, pair.b[0])), (0, (a, pair.a[0]))):
        for node in between(trace, last, ends[side]):
            for slot, error in _own_errors(node):
                if error < _A_GOOD_PART * off:
                    continue
                both = (a.nodes[pair.a[0]], node) if side else (node, b.nodes[pair.b[0]])
                evidence = f"in {sides[side]}: off by {error:.2g} of its largest element from what its own inputs give in float64"
                score = error / epsilon_of(node.outputs[slot].dtype)
                return Suspect("kernel", *both, "output", slot, score, evidence)
    return None


def wrong_kernels(
    a: Trace, b: Trace, pairs: Mapping[Place, Pair], doubtful: Iterable[Pair], sides: tuple[str, str]
) -> list[Suspect]:
    """The same of several pairs, each operator once."""
    found: dict[tuple[Node | None, Node | None], Suspect] = {}
    for pair in doubtful:
        suspect = wrong_kernel(a, b, pairs, pair, pair.distance, sides)
        if suspect is not None:
            found.setdefault((suspect.a, suspect.b), suspect)
    return list(found.values())


def _own_errors(node: Node) -> Iterator[tuple[int, float]]:
    """The outputs that are further off than rounding allows, and how far."""
    if not any(epsilon_of(record.dtype) for record in node.outputs.values()):
        return
    values = recorded_inputs(node)
    done = replay(node, values)
    if done is None:
        return
    summands = replay(node, {slot: np.abs(value) for slot, value in values.items()})
    for slot, record in node.outputs.items():
        given = recorded(record)
        if given is None or slot not in done.outputs or slot in unspecified_outputs(node.op.kernel or node.op.op_type):
            continue
        reference = done.outputs[slot]
        if reference.size != given.size:
            continue
        error = error_of(reference, given, None if summands is None else summands.outputs.get(slot))
        if error > allowed_error(node, record) > 0:
            yield slot, error
