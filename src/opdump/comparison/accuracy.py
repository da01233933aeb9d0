"""How far values may be apart before rounding no longer explains it: the tolerances of a comparison, and the error of an operator against float64."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from opdump.checks.operator_classes import class_of
from opdump.comparison.differences import (
    WHOLLY,
    Array,
    Difference,
    apart,
    coarsest,
    epsilon_of,
    equal_elements,
    has_elements,
    same_statistics,
    unshaped_difference,
)
from opdump.comparison.execution import recorded, recorded_inputs, replay
from opdump.comparison.nodes import Node
from opdump.comparison.step_statistics import size_of
from opdump.records import OpRecord, TensorRecord


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest difference that rounding explains, relative to the size of a tensor.

    `units` counts roundings: distances from 1 to the next larger number of the type. Types that are coarser than float32 may have fewer,
    `narrow_units`, because kernels accumulate them in float32. `most` limits the result, because a difference of that size is visible in any type.
    """

    units: float
    narrow_units: float
    most: float = math.inf

    def of(self, epsilon: float) -> float:
        """The tolerance for the type with this rounding."""
        units = self.units if epsilon <= epsilon_of("float32") else self.narrow_units
        return min(self.most, units * epsilon)


CONSTANTS: Final = Tolerance(8.0, 2.0)
"""Two programs on the same values in float64: only one of them may round a constant to the recorded type."""
KERNEL: Final = Tolerance(256.0, 8.0)
"""One operator, relative to its largest element: long sums and fast algorithms round repeatedly."""
RESULT: Final = Tolerance(100.0, 16.0)
"""A result of a whole network, in the coarsest type on the way."""
OPAQUE: Final = Tolerance(256.0, 256.0, 0.5)
"""An operator that cannot be run again, for inputs with the same bits: it may be a whole network."""
UNLIKE_FRAMEWORKS: Final = Tolerance(1024.0, 16.0)
"""The same for inputs that another framework computed."""
GRAPH: Final = Tolerance(2.0**14, 2.0**14, 0.5)
"""A compiled graph against float64. A larger error is not rounding: a step function, such as `floor` of a sum near 1, turns a last bit into a
difference.
"""
RECORDED_GRAPH: Final = Tolerance(100.0, 100.0, 0.5)
"""A compiled graph that is not run again, against the recorded outputs of the operators that compute the same."""
DATA: Final = Tolerance(64.0, 64.0)
"""Data, relative to the largest element, if the programs compute them."""
OF_ARGUMENTS: Final = Tolerance(0.05, 0.05)
"""Outputs of operators with different arguments, which certainly differ: the smallest effect counts."""
UNPROVEN: Final = Tolerance(1e4, 1e4)
"""Recorded outputs of operators that cannot be run again, for inputs that are not known to be the same."""
DIVERGENCE: Final = 8.0
"""In units of rounding, for all types: outputs on the way to a different result that are further apart show where the runs diverge."""
LARGEST: Final = 64.0
"""In units of rounding of the largest input or output element: a result that cancels to almost nothing may be off by this much."""

_EXACT_CLASSES: Final = frozenset({"moves", "casts"})
"""Classes of operators that compute nothing."""


class Kernel(Protocol):
    """One execution of an operator: a node of a comparison, or its record in a catalog."""

    @property
    def op(self) -> OpRecord: ...

    @property
    def inputs(self) -> Mapping[int, TensorRecord]: ...


def allowed_error(node: Kernel, record: TensorRecord) -> float:
    """The allowed error of a kernel's output relative to float64, as a share of the largest element.

    A kernel may compute in the narrowest type that it reads, whatever the type of its result: sums of bfloat16 may be kept in bfloat16. No kernel
    computes in fewer bits than that. 0 for outputs of exact types.
    """
    epsilon = epsilon_of(record.dtype)
    if epsilon and class_of(node.op.op_type) not in _EXACT_CLASSES:
        epsilon = max(epsilon, min(coarsest(node.inputs.values()), epsilon_of("bfloat16")))
    return KERNEL.of(epsilon)


@dataclass(frozen=True, slots=True)
class Float64Outputs:
    """The outputs of an operator in float64, by slot."""

    exact: Mapping[int, Array]
    summands: Mapping[int, Array]
    """The same for the absolute values of the inputs: sums of absolute summands, if the operator sums."""
    reads_nan: bool = False
    """Whether an input has NaN. What a kernel makes of it is not judged: a ReLU may return 0, and a softplus infinity."""

    @classmethod
    def of(cls, node: Node, values: Mapping[int, Array] | None = None) -> Float64Outputs | None:
        """The outputs for these inputs, by default the recorded ones; None if the operator cannot be run again."""
        values = recorded_inputs(node) if values is None else values
        done = replay(node, values)
        if done is None:
            return None
        absolute = replay(node, {slot: np.abs(value) for slot, value in values.items()})
        return cls(
            done.outputs,
            {} if absolute is None else absolute.outputs,
            any(np.isnan(value).any() for value in values.values() if value.dtype.kind in "fc"),
        )

    def error(self, slot: int, given: Array) -> float | None:
        """The error of an output, as from `error_of`; None if the operator has no such output."""
        if slot not in self.exact:
            return None
        exact = self.exact[slot]
        if self.reads_nan and exact.shape == given.shape:
            given = np.where(np.isnan(exact), exact, given)
        return error_of(exact, given, self.summands.get(slot))


def error_of(reference: Array, given: Array, summands: Array | None) -> float:
    """The largest difference from float64, divided by the largest element or the largest sum of absolute summands, whichever is larger.

    Elements that are NaN in both, or the same infinity, are equal and have no size.
    """
    finite = np.isfinite(reference)
    if not finite.all() and reference.shape == given.shape:
        kept = finite | ~equal_elements(reference, given)
        if not kept.any():
            return 0.0
        reference, given = reference[kept], given[kept]
        summands = summands[kept] if summands is not None and summands.shape == kept.shape else None
    found = unshaped_difference(reference, given)
    if found.peak == 0 or summands is None:
        return found.peak
    top, reach = float(np.abs(reference).max()), float(np.abs(summands).max())
    if top == 0 and 0 < reach < math.inf:
        # The terms cancel exactly in float64, so the kernel's output is only its rounding.
        largest = float(np.abs(given).max())
        return largest / reach if math.isfinite(largest) else math.inf
    if not math.isfinite(found.peak):
        return found.peak
    return found.peak * top / max(top, reach if math.isfinite(reach) else top)


def record_difference(one: TensorRecord, other: TensorRecord) -> Difference | None:
    """The difference of two tensors, from their elements or else from their statistics; None if neither suffices."""
    if math.prod(one.shape) != math.prod(other.shape):
        return WHOLLY
    if has_elements(one) and has_elements(other):
        return unshaped_difference(one.numpy(), other.numpy())
    relative = 0.0 if same_statistics(one, other) else apart(one, other)
    if relative is None:
        return None
    return Difference(relative, relative, relative * size_of(one) if relative else 0.0)


def distance(one: TensorRecord, other: TensorRecord) -> float | None:
    """The relative part of `record_difference`."""
    found = record_difference(one, other)
    return None if found is None else found.relative


def own_errors(node: Node) -> Iterator[tuple[int, float]]:
    """The output slots of a node with an error larger than rounding allows, and the error. None for a rewritten node, whose outputs are not those of its
    inputs.
    """
    exact = Float64Outputs.of(node) if node.rounding and not node.is_rewritten else None
    for slot, record in node.outputs.items() if exact is not None else ():
        given = recorded(record)
        if given is None or exact is None or slot in node.unspecified:
            continue
        error = exact.error(slot, given)
        if error is not None and exact.exact[slot].size == given.size and error > allowed_error(node, record) > 0:
            yield slot, error


def told_error(error: float) -> str:
    """Describe an error as evidence."""
    return f"its output differs by {error:.2g} of its largest element from a float64 computation on the same inputs"
