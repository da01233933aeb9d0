"""Judges dumps of devices, which contain neither arguments nor the makers of inputs, and whose operators cannot be run again.

If the inputs of an operator agree in both runs, its outputs may differ by no more than rounding can cause in its class of operators. That is
a bound, not a proof, and the verdict says so.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opdump.adapters.replay import replayer_of
from opdump.comparison.accuracy import KERNEL
from opdump.comparison.alignment import Alignment
from opdump.comparison.differences import (
    Difference,
    coarsest,
    digest_of,
    epsilon_of,
    has_elements,
    in_roundings,
    root_mean_square,
    unshaped_difference,
)
from opdump.comparison.kernel_accuracy import has_graphs
from opdump.comparison.nodes import Node, Place, Suspect
from opdump.comparison.trace import Trace, tells_sources
from opdump.op_types.unspecified import unspecified_outputs
from opdump.records import TensorRecord

_HANDS_ON: Final[Mapping[str, float]] = {"moves": 4.0, "casts": 4.0, "cube": 64.0, "computes": 64.0}
"""How many times an operator may amplify a difference of its inputs, by its class."""
_AGREES: Final = 0.05
"""If inputs are further apart than this, outputs are not judged."""
_FEW: Final = 10
"""If more than one in this many operators has no counterpart, the programs are different."""
_ALIKE: Final = 64.0
"""An element agrees if its relative difference is at most this many times that of all inputs."""


def is_bounded(a: Trace, b: Trace) -> bool:
    """Whether only bounds are possible: a dump does not record the makers of inputs, and no operator of either can be run again."""
    if (tells_sources(a) and tells_sources(b)) or has_graphs(a.nodes) or has_graphs(b.nodes):
        return False
    return not any(replayer_of(node.op) for trace in (a, b) for node in trace.nodes)


@dataclass(frozen=True, slots=True)
class Bounded:
    """The findings in a step."""

    suspects: Sequence[Suspect]
    notes: Sequence[str]
    worst: float
    """The largest difference of an output in this step or an earlier one."""


def judge_by_bounds(a: Trace, b: Trace, alignment: Alignment, before: Bounded | None = None) -> Bounded:
    """The operators whose outputs differ although their inputs agree, and what is not proven.

    `before` has the findings in the previous step: values that differ there may last.
    """
    judging = _Judging(a, b, alignment, 0.0 if before is None else before.worst)
    for there, here in sorted(alignment.a_of.items()):
        judging.add(a.nodes[here], b.nodes[there])
    notes = []
    worst = max([judging.lasts, *judging.apart.values()])
    if worst and not judging.suspects:
        notes.append(
            "operators of these dumps cannot be run again, so each was judged by the rounding that its class of operators may cause; it is "
            "likely, but not proven, that all differences are rounding"
        )
    if judging.left:
        notes.append(
            "operators without a counterpart were judged only by the operators that read their outputs, because they cannot be run again"
        )
    return Bounded(judging.suspects, notes, worst)


@dataclass(slots=True)
class _Judging:
    a: Trace
    b: Trace
    alignment: Alignment
    lasts: float
    """The largest difference that earlier steps left."""
    suspects: list[Suspect] = field(default_factory=list)
    apart: dict[Place, float] = field(default_factory=dict)
    """The relative difference of each output of A's operators in B."""
    _seen: set[bytes] = field(default_factory=set)
    """The contents of inputs that were reported, since other operators may read them too."""
    _coarsest: float = 0.0
    """The rounding of the narrowest type among outputs whose types differ between the runs."""

    @property
    def left(self) -> int:
        """The number of operators without a counterpart."""
        return len(self.a.nodes) + len(self.b.nodes) - 2 * self.alignment.matched

    def __post_init__(self) -> None:
        for there, here in self.alignment.a_of.items():
            for slot, record in self.a.nodes[here].outputs.items():
                after = self.b.nodes[there].outputs.get(slot)
                if after is not None and after.dtype != record.dtype:
                    self._coarsest = max(self._coarsest, coarsest((record, after)))

    def add(self, one: Node, other: Node) -> None:
        """Judges the next pair of operators."""
        given = 0.0
        for slot, record in one.inputs.items():
            off = _off(record, other.inputs.get(slot))
            if off is None:
                continue
            given = max(given, off.relative)
            suspect = self._source(one, other, slot, off)
            if suspect is not None and (content := digest_of(record.numpy())) not in self._seen:
                self._seen.add(content)
                self.suspects.append(suspect)
        unspecified = unspecified_outputs(one.op.kernel or f"aten::{one.op.op_type}")  # device dumps have no kernel
        for slot, record in one.outputs.items():
            off = None if slot in unspecified else _off(record, other.outputs.get(slot))
            if off is None:
                continue
            self.apart[one.index, slot] = off.relative
            suspect = self._beyond(one, other, slot, off, given)
            if suspect is not None:
                self.suspects.append(suspect)

    def _epsilon(self, one: TensorRecord, other: TensorRecord) -> float:
        epsilon = coarsest((one, other))
        return max(epsilon, self._coarsest) if epsilon else 0.0

    def _source(self, one: Node, other: Node, slot: int, off: Difference) -> Suspect | None:
        """The suspect for an input that differs, if the difference does not come from a matched operator."""
        epsilon = self._epsilon(one.inputs[slot], other.inputs[slot])
        if off.relative <= KERNEL.of(epsilon):
            return None
        mine, its = one.makers.get(slot), other.makers.get(slot)
        score = in_roundings(off.relative, epsilon)
        size = f"it differs by {off.relative:.2g} of its size"
        before = None if mine is None else self.apart.get(mine)
        if before is not None and off.relative > _HANDS_ON["moves"] * max(before, epsilon):
            evidence = f"the output of its maker agrees to {before:.2g} in both runs, but {size}"
            return Suspect("memory", one, other, "input", slot, score, evidence)
        if off.relative <= _HANDS_ON["computes"] * max([self.lasts, *self.apart.values()]):
            return None  # it may be a part of an earlier value that differs
        if _FEW * self.left > len(self.a.nodes) + len(self.b.nodes):
            return None  # if most operators differ, the programs compute it in different ways
        evidence = f"{other.bare_type} reads its output, and {size}"
        lost, added = _lone(self.a, mine, self.alignment.b_of), _lone(self.b, its, self.alignment.a_of)
        if lost is not None:
            return Suspect("missing", lost[0], None, "output", lost[1], score, evidence)
        if added is not None:
            return Suspect("extra", one, added[0], "output", added[1], score, evidence)
        if mine is None and its is None and math.prod(one.inputs[slot].shape) > 1:
            return Suspect("data", one, other, "input", slot, score, f"no operator in the dumps made it, and {size}")
        return None

    def _beyond(self, one: Node, other: Node, slot: int, off: Difference, given: float) -> Suspect | None:
        """The suspect for an output that differs by more than its class of operators allows, given the difference of the inputs."""
        record, after = one.outputs[slot], other.outputs[slot]
        epsilon = self._epsilon(record, after)
        kind = one.operator_class
        allowed = KERNEL.of(epsilon) + _HANDS_ON[kind] * given
        if given > _AGREES or (not epsilon and given) or off.relative <= allowed:
            return None
        relative = off.relative
        if epsilon and math.isfinite(relative):
            where = _given_alike(one, other, math.prod(record.shape), max(epsilon, given))
            mine, its = (each.numpy().astype(np.float64).reshape(-1) for each in (record, after))
            reach = max(root_mean_square(mine), _reach(one, slot, kind))
            changed = (its - mine)[where]
            if 2 * changed.size < mine.size or root_mean_square(changed) <= allowed * reach:
                return None
            relative = in_roundings(root_mean_square(changed), reach)
        evidence = (
            f"inputs agree to {given:.2g}, but the output differs by {relative:.2g} of its size; rounding in an operator of its class "
            f"({kind}) explains at most {allowed:.2g}; it cannot be run again, and its arguments are not in the dump, so this is not proven"
        )
        return Suspect("operator", one, other, "output", slot, in_roundings(relative, epsilon), evidence)


def _off(one: TensorRecord, other: TensorRecord | None) -> Difference | None:
    """The difference of a tensor; None if it is empty or either run lacks its values."""
    if other is None or not (has_elements(one) and has_elements(other)) or 0 in one.shape:
        return None
    return unshaped_difference(one.numpy(), other.numpy())


def _lone(trace: Trace, maker: Place | None, matched: Container[int]) -> tuple[Node, int] | None:
    """The maker of an input and its slot, if it computes something and has no counterpart."""
    node = None if maker is None or maker[0] in matched else trace.nodes[maker[0]]
    # Equal programs may move and cast elements in different places.
    return None if node is None or maker is None or node.operator_class in ("moves", "casts") else (node, maker[1])


def _given_alike(one: Node, other: Node, count: int, within: float) -> NDArray[np.bool_]:
    """The output elements whose own input elements agree. Others may differ by more: an optimizer divides by values close to zero."""
    alike = np.ones(count, np.bool_)
    for slot, record in one.inputs.items():
        after = other.inputs.get(slot)
        if after is None or not (has_elements(record) and has_elements(after)) or math.prod(record.shape) != count:
            continue
        mine, its = (each.numpy().astype(np.float64).reshape(-1) for each in (record, after))
        alike &= ~(np.abs(its - mine) > _ALIKE * within * np.abs(mine))
    return alike


def _reach(node: Node, slot: int, kind: str) -> float:
    """The size of an output if its summands did not cancel; 0 for classes without sums."""
    floats = [
        record.numpy().astype(np.float64)
        for record in node.inputs.values()
        if has_elements(record) and epsilon_of(record.dtype) and 0 not in record.shape
    ]
    count = max(1, math.prod(node.outputs[slot].shape))
    if kind == "cube" and len(floats) > 1:
        depth = math.sqrt(floats[0].size * floats[1].size / count)
        return math.sqrt(depth) * root_mean_square(floats[0]) * root_mean_square(floats[1])
    if kind == "computes":
        return max(
            (root_mean_square(each) * math.sqrt(each.size / count) for each in floats if each.size > count), default=0.0
        )
    return 0.0
