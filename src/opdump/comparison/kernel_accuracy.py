"""How far a kernel is from what its own inputs give in float64: a wrong kernel, a bit that flipped in an output."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from opdump.checks.operator_classes import class_of
from opdump.comparison.alignment import Alignment
from opdump.comparison.differences import (
    Difference,
    difference,
    epsilon_of,
    equal_elements,
    largest_of,
    unshaped_difference,
)
from opdump.comparison.execution import draws, recorded, recorded_inputs, replay
from opdump.comparison.nodes import Node
from opdump.comparison.suspects import Suspect
from opdump.comparison.trace import Trace
from opdump.op_types.unspecified import unspecified_outputs
from opdump.records import OpRecord, TensorRecord

Array = NDArray[Any]


class Kernel(Protocol):
    """One execution of an operator: a node of a comparison, or what a catalog has of it."""

    @property
    def op(self) -> OpRecord: ...

    @property
    def inputs(self) -> Mapping[int, TensorRecord]: ...


_EXACT_CLASSES: Final = frozenset({"moves", "casts"})
"""Classes of operators that compute nothing."""
_ROUNDINGS: Final = 256.0
_NARROW_ROUNDINGS: Final = 8.0
_TIMES_THE_OTHER: Final = 64.0
_FEWEST: Final = 8
"""Of fewer elements none is unlike the others."""
_SHARE_OF_USUAL: Final = 0.9


def erring_kernel(
    a: Trace, b: Trace, alignment: Alignment, alike: Sequence[tuple[Node, Node]], suspects: Sequence[Suspect]
) -> Suspect | None:
    """The first kernel that errs, of pairs that are given the same, of B alone, and of A alone. It is looked for before the first suspect: later
    inputs differ.
    """
    first_a = min((each.a.index for each in suspects if each.a is not None), default=len(a.nodes))
    first_b = min((each.b.index for each in suspects if each.b is not None), default=len(b.nodes))
    found = chain(
        (kernel_suspect(one, other) for one, other in alike if other.index <= first_b),
        (lone_kernel_suspect(node, is_b=True) for node in _lone(b, alignment.a_of, first_b)),
        (lone_kernel_suspect(node, is_b=False) for node in _lone(a, alignment.b_of, first_a)),
    )
    return next(filter(None, found), None)


def _lone(trace: Trace, matched: Container[int], end: int) -> Iterator[Node]:
    """The operators before a place that only one of the programs has."""
    return (node for node in trace.nodes[:end] if node.index not in matched and not node.moves and not draws(node))


def kernel_suspect(one: Node, other: Node) -> Suspect | None:
    """The same operator with the same arguments: whether each run's result is that of its own inputs."""
    given = {slot: recorded(record) for slot, record in one.outputs.items()}
    given_b = {slot: recorded(record) for slot, record in other.outputs.items()}
    for slot, record in other.outputs.items():
        first, second = given.get(slot), given_b[slot]
        if first is None or second is None or slot in unspecified_outputs(other.op.kernel or other.op.op_type):
            continue
        allowed = max(allowed_error(other, record), allowed_error(one, one.outputs[slot]))
        if not allowed or difference(first, second).peak <= allowed:
            continue
        own_a, own_b = _own_error(one, slot, first), _own_error(other, slot, second)
        if own_a is None or own_b is None:
            continue
        for mine, its, is_b in ((own_b, own_a, True), (own_a, own_b, False)):
            if mine > allowed and mine > _TIMES_THE_OTHER * its:
                what = (
                    f"{'' if is_b else 'in A: '}off by {mine:.2g} of its largest element from what its own inputs give in "
                    f"float64, where the other run is off by {its:.2g}"
                )
                return Suspect("kernel", one, other, "output", slot, mine / rounding_of(record, None), what)
    return None


def lone_kernel_suspect(node: Node, *, is_b: bool) -> Suspect | None:
    """An operator that only one of the programs has: whether a few elements are further from what its own inputs give than rounding gets,
    and than all others.
    """
    for slot, record in node.outputs.items():
        given = recorded(record)
        allowed = allowed_error(node, record)
        if (
            given is None
            or given.size < _FEWEST
            or not allowed
            or slot in unspecified_outputs(node.op.kernel or node.op.op_type)
        ):
            continue
        reference = _replayed(node, slot)
        summands = _summands(node, slot)
        if reference is None or reference.shape != given.shape:
            continue
        kept = ~_left_its_type(reference, given, largest_of(record.dtype))
        if kept.sum() < _FEWEST:
            continue
        reference, given = reference[kept], given[kept]
        with np.errstate(all="ignore"):
            errors = np.abs(given.astype(reference.dtype) - reference)
        errors[equal_elements(given, reference)] = 0.0
        errors[~np.isfinite(errors)] = math.inf
        usual = float(np.quantile(errors, _SHARE_OF_USUAL, method="higher"))
        if not errors.max() > _TIMES_THE_OTHER * usual:
            continue
        error = error_of(reference, given, None if summands is None else summands[kept])
        if error > allowed:
            what = (
                f"{'' if is_b else 'in A: '}{int((errors > _TIMES_THE_OTHER * usual).sum()):,} of {math.prod(record.shape):,} elements are off from what its "
                f"own inputs give in float64, by up to {error:.2g} of the largest"
            )
            one, other = (None, node) if is_b else (node, None)
            return Suspect("kernel", one, other, "output", slot, error / rounding_of(record, None), what)
    return None


def _left_its_type(reference: Array, given: Array, largest: float) -> NDArray[np.bool_]:
    """Where an output is infinite, or NaN, since float64 is too, or since it is more than the type can hold."""
    with np.errstate(invalid="ignore"):
        return ~np.isfinite(given) & (equal_elements(given, reference) | (np.abs(reference) > largest / 2))


def allowed_error(node: Kernel, record: TensorRecord) -> float:
    """How far from float64 an output of a kernel may be, relative to the largest element: long sums and fast algorithms round more than once.

    A kernel may compute in the narrowest type that it reads, whatever it gives the result as: sums of bfloat16 that are kept in bfloat16.
    No kernel computes in fewer bits than that. 0 for outputs of types that are exact.
    """
    epsilon = epsilon_of(record.dtype)
    if epsilon and class_of(node.op.op_type) not in _EXACT_CLASSES:
        narrowest = max((epsilon_of(each.dtype) for each in node.inputs.values()), default=0.0)
        epsilon = max(epsilon, min(narrowest, epsilon_of("bfloat16")))
    return allowed_for(epsilon)


def allowed_for(epsilon: float) -> float:
    """The same for a kernel that computes in a type of this rounding."""
    return epsilon * (_ROUNDINGS if epsilon <= epsilon_of("float32") else _NARROW_ROUNDINGS)


def _own_error(node: Node, slot: int, given: Array) -> float | None:
    """The largest difference from float64, over the largest element or, where it is larger, the largest sum of absolute summands."""
    reference = _replayed(node, slot)
    return None if reference is None else error_of(reference, given, _summands(node, slot))


def _replayed(node: Node, slot: int) -> Array | None:
    """What its recorded inputs give in float64."""
    done = replay(node, recorded_inputs(node))
    return None if done is None else done.outputs.get(slot)


def _summands(node: Node, slot: int) -> Array | None:
    """The same of their absolute values."""
    done = replay(node, {place: np.abs(value) for place, value in recorded_inputs(node).items()})
    return None if done is None else done.outputs.get(slot)


def error_of(reference: Array, given: Array, summands: Array | None) -> float:
    """How far an output is from float64, over the largest element; over the largest sum of absolute summands where that is larger."""
    found = unshaped_difference(reference, given)
    if found.peak == 0 or summands is None:
        return found.peak
    top, reach = float(np.abs(reference).max()), float(np.abs(summands).max())
    if top == 0 and 0 < reach < math.inf:
        # What cancels exactly in float64 leaves its rounding behind.
        largest = float(np.abs(given).max())
        return largest / reach if math.isfinite(largest) else math.inf
    if not math.isfinite(found.peak):
        return found.peak
    return found.peak * top / max(top, reach if math.isfinite(reach) else top)


def rounding_of(one: TensorRecord, other: TensorRecord | None) -> float:
    """The rounding of the narrower type."""
    return max(epsilon_of(one.dtype), 0.0 if other is None else epsilon_of(other.dtype))


def in_roundings(found: Difference, record: TensorRecord) -> float:
    """A difference in units of the element type's rounding; infinite for types that are exact."""
    epsilon = epsilon_of(record.dtype)
    return found.relative / epsilon if epsilon else math.inf
