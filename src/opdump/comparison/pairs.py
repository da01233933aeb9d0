"""How far the outputs of matched operators are apart: the rows of the table of a comparison.

Work is cut into units (rank, step, range of operators) that any process can measure by itself: `measured` takes one and gives a row for
each of its pairs. It holds one pair at a time, and large files are mapped.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.alignment import MatchKind, score
from opdump.comparison.differences import comparable, epsilon_of
from opdump.comparison.nodes import Node
from opdump.comparison.statistics_apart import DIFFERS, apart, same_statistics
from opdump.comparison.tensor_layouts import TensorLayout
from opdump.comparison.trace import has_elements
from opdump.comparison.value_matching import ValueKind
from opdump.kernels import PairMetrics, compare_pair
from opdump.metrics import AddedMetrics
from opdump.op_types.unspecified import unspecified_outputs
from opdump.records import OpRecord, TensorRecord

Array = NDArray[Any]
State = Literal["identical", "noise", "introduced", "inherited"]

_MOST_OF_ROUNDING: Final = 100.0
"""Units of rounding that come together on the way through a network: what is further apart is more than noise, or hands it on."""
_PAIRS_OF_A_UNIT: Final = 512
_ELEMENTS_OF_A_UNIT: Final = 1 << 26
_TOLERANCES: Final[Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        "float64": (1e-7, 1e-7),
        "complex128": (1e-7, 1e-7),
        "float32": (1e-5, 1.3e-6),
        "complex64": (1e-5, 1.3e-6),
        "float16": (1e-5, 1e-3),
        "bfloat16": (1e-5, 1.6e-2),
    }
)
"""Absolute and relative, those of `torch.testing.assert_close`; 0 for other types."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """The same output of an operator in A and in B, and by what the operators were matched, from a score of 0 to 1."""

    a: TensorRecord
    b: TensorRecord
    matched_by: MatchKind | ValueKind = "name"
    match_score: float = 1.0
    layout: TensorLayout | None = None
    """How B's elements lie where A has its own; None where they lie the same."""
    with_a: Sequence[str] = ()
    """Operators of A that are matched together with it: those between the values before it that both runs have and this one."""
    with_b: Sequence[str] = ()
    fails: bool = False
    """Whether it was found to be no rounding of what the other program makes of the same values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """How far an output is apart in the two runs. What cannot be told is None, and `reason` says why nothing can."""

    identical: bool
    roundings: float | None = None
    """Relative L2 in units of rounding of the (narrower) element type; None for types that are exact."""
    max_absolute: float | None = None
    relative_l2: float | None = None
    cosine: float | None = None
    max_ulp: int | None = None
    """At most so many numbers of their type lie between two elements: the histogram's last class, 2^n - 1."""
    out_of_tolerance: int | None = None
    """Elements further apart than `torch.testing.assert_close` allows for the type."""
    by_statistics: float | None = None
    """Where elements are missing: the largest difference of a statistic, relative to the root mean square of the elements."""
    added: Mapping[str, float] = field(default_factory=dict)
    """The metrics of installed packages, by name."""
    reason: str = ""

    @property
    def is_beyond_rounding(self) -> bool:
        """Whether it is further apart than rounding that comes together."""
        if self.identical or self.reason == _UNKNOWN:
            return False
        if self.by_statistics is not None:
            return self.by_statistics > DIFFERS
        return self.roundings is None or not self.roundings <= _MOST_OF_ROUNDING


_UNKNOWN: Final = "the dumps have neither its elements nor statistics"


@dataclass(frozen=True, slots=True)
class PairRow:
    """One output of an operator that both runs have, with what was measured.

    `state` is "identical" (the same bits), "noise" (rounding, or a difference that the verdict explains), "introduced" (by this operator),
    or "inherited" (it was given a difference).
    """

    outputs: Outputs
    state: State
    measured: Measured

    @property
    def a(self) -> OpRecord:
        """The operator in A."""
        return self.outputs.a.op

    @property
    def b(self) -> OpRecord:
        """The operator in B."""
        return self.outputs.b.op

    def row(self) -> dict[str, Any]:
        """The pair as a row of a table."""
        found, one, other = self.measured, self.outputs.a, self.outputs.b
        return {
            "rank": self.b.rank_id,
            "step": self.b.step,
            "order_a": self.a.order,
            "order_b": self.b.order,
            "op_type": self.b.op_type,
            "name_a": self.a.op_name,
            "name_b": self.b.op_name,
            "matched_by": self.outputs.matched_by,
            "match_score": self.outputs.match_score,
            "with_a": list(self.outputs.with_a),
            "with_b": list(self.outputs.with_b),
            "source": self.b.line,
            "slot": other.slot,
            "dtype_a": one.dtype,
            "dtype_b": other.dtype,
            "shape": list(other.shape),
            "state": self.state,
            "roundings": found.roundings,
            "max_absolute": found.max_absolute,
            "relative_l2": found.relative_l2,
            "cosine": found.cosine,
            "max_ulp": found.max_ulp,
            "out_of_tolerance": found.out_of_tolerance,
            "by_statistics": found.by_statistics,
            **found.added,
            "reason": found.reason,
        }


def outputs_of(one: Node, other: Node, matched_by: MatchKind = "name") -> Iterator[Outputs]:
    """The outputs that both operators have, without those that mean nothing."""
    unspecified = unspecified_outputs(one.op.kernel or one.op.op_type) | unspecified_outputs(
        other.op.kernel or other.op.op_type
    )
    likeness = 1.0 if matched_by == "name" else score(one, other)
    for slot, record in one.outputs.items():
        if slot in other.outputs and slot not in unspecified:
            yield Outputs(record, other.outputs[slot], matched_by, likeness)


def units(pairs: Iterable[Outputs]) -> Iterator[list[Outputs]]:
    """Cuts pairs into units of work: a range of the operators of one step of one rank each, as B runs them."""
    for _, step in itertools.groupby(pairs, key=lambda pair: (pair.b.op.rank_id, pair.b.op.step)):
        unit: list[Outputs] = []
        elements = 0
        for pair in step:
            unit.append(pair)
            elements += math.prod(pair.a.shape)
            if len(unit) >= _PAIRS_OF_A_UNIT or elements >= _ELEMENTS_OF_A_UNIT:
                yield unit
                unit, elements = [], 0
        if unit:
            yield unit


def measured(unit: Sequence[Outputs]) -> tuple[list[Measured], dict[str, str]]:
    """A row for each pair, and why metrics of installed packages are missing in some, by their names."""
    added = AddedMetrics()
    return [measure(pair.a, pair.b, added, pair.layout) for pair in unit], added.reasons


def measure(
    one: TensorRecord, other: TensorRecord, added: AddedMetrics, layout: TensorLayout | None = None
) -> Measured:
    """How far one output is apart: by elements, or by statistics where elements are missing."""
    if math.prod(one.shape) != math.prod(other.shape):
        return Measured(identical=False, reason=f"shape {one.shape} in A, {other.shape} in B")
    if not (_is_readable(one) and _is_readable(other)):
        distance = apart(one, other)
        if distance is None:
            return Measured(identical=True, reason=_UNKNOWN)
        return Measured(identical=not distance and same_statistics(one, other), by_statistics=distance)
    a, b = one.numpy(), other.numpy()
    same_shape = one.shape == other.shape or layout is not None
    b = b.reshape(a.shape) if layout is None else layout.apply(b)
    found = _metrics(a, one.dtype, b, other.dtype)
    epsilon = max(epsilon_of(one.dtype), epsilon_of(other.dtype))
    return Measured(
        identical=same_shape and one.dtype == other.dtype and not found.different,
        roundings=_roundings(found, epsilon) if epsilon else None,
        max_absolute=found.max_absolute,
        relative_l2=found.relative_l2,
        cosine=found.cosine,
        max_ulp=None if found.ulps is None else (1 << max(0, len(found.ulps) - 1)) - 1,
        out_of_tolerance=found.out_of_tolerance,
        added=added.of(a, b) if added else {},
    )


def _is_readable(record: TensorRecord) -> bool:
    return has_elements(record) or 0 in record.shape


def _metrics(a: Array, dtype_a: str, b: Array, dtype_b: str) -> PairMetrics:
    atol, rtol = max(
        _TOLERANCES.get(dtype_a, (0.0, 0.0)), _TOLERANCES.get(dtype_b, (0.0, 0.0)), key=lambda each: each[1]
    )
    if dtype_a == dtype_b == "bfloat16":
        return compare_pair(_bits(a), _bits(b), atol=atol, rtol=rtol, dtype_a="bfloat16", dtype_b="bfloat16")
    return compare_pair(comparable(a), comparable(b), atol=atol, rtol=rtol)


def _bits(widened: Array) -> Array:
    """bfloat16 that was widened to float32, as the upper halves of these: a view."""
    bits = np.ascontiguousarray(widened, np.dtype("<f4")).reshape(*widened.shape, 1).view("<u2")
    return bits[..., 1].reshape(widened.shape)


def _roundings(found: PairMetrics, epsilon: float) -> float:
    if not found.different:
        return 0.0
    if found.nan_a or found.nan_b or found.inf_a or found.inf_b:
        return math.inf
    return found.relative_l2 / epsilon
