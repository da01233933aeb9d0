"""Judges dumps of devices, whose operators nobody can run again and which hold neither arguments nor who made what is read.

Each operator was given something in both runs, and gave something: where what it is given agrees, what it gives may be further apart by
what rounding can do in an operator of its class, and by no more. That is a bound and no proof, and the verdict says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdump.adapters.replay import replayer_of
from opdump.checks.operator_classes import class_of
from opdump.comparison.alignment import Alignment
from opdump.comparison.differences import Difference, epsilon_of, unshaped_difference
from opdump.comparison.kernel_accuracy import allowed_for, has_graphs
from opdump.comparison.nodes import Node, Suspect
from opdump.comparison.trace import Trace, has_elements, tells_sources
from opdump.op_types.unspecified import unspecified_outputs
from opdump.records import TensorRecord

Array = NDArray[Any]

_HANDS_ON: Final[Mapping[str, float]] = {"moves": 4.0, "casts": 4.0, "cube": 64.0, "computes": 64.0}
"""How many times further apart an operator may give what it is given, by its class."""
_AGREES: Final = 0.05
"""Inputs that are further apart are no ground to judge an output on."""
_FEW: Final = 10
"""Where one of so many operators has no counterpart, the programs are not the same."""
_ALIKE: Final = 64.0
"""Elements of an input that are further apart than so many times as much as all of it are not alike."""


def is_bounded(a: Trace, b: Trace) -> bool:
    """Whether bounds are all there is: a dump does not say who made what is read, and no operator of either can be run again."""
    if (tells_sources(a) and tells_sources(b)) or has_graphs(a.nodes) or has_graphs(b.nodes):
        return False
    return not any(replayer_of(node.op) for trace in (a, b) for node in trace.nodes)


@dataclass(frozen=True, slots=True)
class Bounded:
    """What is found of a step."""

    suspects: Sequence[Suspect]
    notes: Sequence[str]
    worst: float
    """How far an output is apart, at most, in this step or one before it."""


def judge_by_bounds(a: Trace, b: Trace, alignment: Alignment, before: Bounded | None = None) -> Bounded:
    """The operators that give something else for what agrees, and what is not proven; of two traces that have the same operators.

    `before` is what was found of the steps before: what is apart there lasts.
    """
    judging = _Judging(a, b, alignment, 0.0 if before is None else before.worst)
    for there, here in sorted(alignment.a_of.items()):
        judging.add(a.nodes[here], b.nodes[there])
    notes = []
    worst = max([judging.lasts, *judging.apart.values()])
    if worst and not judging.suspects:
        notes.append(
            "operators of these dumps cannot be run again, so each was judged by the rounding that its class of operators may cause; that all "
            "differences are rounding is likely and not proven"
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
    """How far what earlier steps left may be apart."""
    suspects: list[Suspect] = field(default_factory=list)
    apart: dict[tuple[int, int], float] = field(default_factory=dict)
    """How far the outputs of A's operators are apart in B."""
    _seen: set[bytes] = field(default_factory=set)
    """What was accused already, and is read by others too."""
    _coarsest: float = 0.0
    """The rounding of the narrower type where a value has another type in B."""

    @property
    def left(self) -> int:
        """Operators without a counterpart."""
        return len(self.a.nodes) + len(self.b.nodes) - 2 * self.alignment.matched

    def __post_init__(self) -> None:
        for there, here in self.alignment.a_of.items():
            for slot, record in self.a.nodes[here].outputs.items():
                after = self.b.nodes[there].outputs.get(slot)
                if after is not None and after.dtype != record.dtype:
                    self._coarsest = max(self._coarsest, epsilon_of(record.dtype), epsilon_of(after.dtype))

    def add(self, one: Node, other: Node) -> None:
        """The next pair of operators."""
        given = 0.0
        for slot, record in one.inputs.items():
            off = _off(record, other.inputs.get(slot))
            if off is None:
                continue
            given = max(given, off.relative)
            suspect = self._source(one, other, slot, off)
            if suspect is not None and (content := _content(record)) not in self._seen:
                self._seen.add(content)
                self.suspects.append(suspect)
        unspecified = unspecified_outputs(one.op.kernel or f"aten::{one.op.op_type}")  # devices tell no kernel
        for slot, record in one.outputs.items():
            off = None if slot in unspecified else _off(record, other.outputs.get(slot))
            if off is None:
                continue
            self.apart[one.index, slot] = off.relative
            suspect = self._beyond(one, other, slot, off, given)
            if suspect is not None:
                self.suspects.append(suspect)

    def _epsilon(self, one: TensorRecord, other: TensorRecord) -> float:
        epsilon = max(epsilon_of(one.dtype), epsilon_of(other.dtype))
        return max(epsilon, self._coarsest) if epsilon else 0.0

    def _source(self, one: Node, other: Node, slot: int, off: Difference) -> Suspect | None:
        """Why an input is apart, where no matched operator gave it so."""
        epsilon = self._epsilon(one.inputs[slot], other.inputs[slot])
        if off.relative <= allowed_for(epsilon):
            return None
        mine, its = one.makers.get(slot), other.makers.get(slot)
        score = off.relative / epsilon if epsilon else math.inf
        size = f"it differs by {off.relative:.2g} of its size"
        before = None if mine is None else self.apart.get(mine)
        if before is not None and off.relative > _HANDS_ON["moves"] * max(before, epsilon):
            evidence = f"the operator that made it in A agrees to {before:.2g} in both runs, and {size}"
            return Suspect("memory", one, other, "input", slot, score, evidence)
        if any(off.relative <= _HANDS_ON["computes"] * value for value in (self.lasts, *self.apart.values())):
            return None  # it may be a part of what is apart before it
        if _FEW * self.left > len(self.a.nodes) + len(self.b.nodes):
            return None  # programs of so many other operators compute it otherwise
        evidence = f"{other.bare_type} reads what it gives, and {size}"
        if mine is not None and mine[0] not in self.alignment.b_of and _computes(self.a.nodes[mine[0]]):
            return Suspect("missing", self.a.nodes[mine[0]], None, "output", mine[1], score, evidence)
        if its is not None and its[0] not in self.alignment.a_of and _computes(self.b.nodes[its[0]]):
            return Suspect("extra", one, self.b.nodes[its[0]], "output", its[1], score, evidence)
        if mine is None and its is None and math.prod(one.inputs[slot].shape) > 1:
            return Suspect("data", one, other, "input", slot, score, f"no operator of the dumps made it, and {size}")
        return None

    def _beyond(self, one: Node, other: Node, slot: int, off: Difference, given: float) -> Suspect | None:
        """Whether an output is further apart than the operator's class allows for inputs that are so far apart."""
        record, after = one.outputs[slot], other.outputs[slot]
        epsilon = self._epsilon(record, after)
        kind = class_of(one.op.op_type)
        allowed = allowed_for(epsilon) + _HANDS_ON[kind] * given
        if given > _AGREES or (not epsilon and given) or off.relative <= allowed:
            return None
        relative = off.relative
        if epsilon and math.isfinite(relative):
            where = _given_alike(one, other, math.prod(record.shape), max(epsilon, given))
            mine, its = (each.numpy().astype(np.float64).reshape(-1) for each in (record, after))
            reach = max(_rms(mine), _reach(one, slot, kind))
            changed = (its - mine)[where]
            if 2 * changed.size < mine.size or _rms(changed) <= allowed * reach:
                return None
            relative = _rms(changed) / reach if reach else math.inf
        evidence = (
            f"what it is given agrees to {given:.2g}, what it gives differs by {relative:.2g} of its size, where an operator of its class "
            f"({kind}) may by {allowed:.2g}; it cannot be run again, and its arguments are not in the dump, so this is not proven"
        )
        return Suspect("operator", one, other, "output", slot, relative / epsilon if epsilon else math.inf, evidence)


def _off(one: TensorRecord, other: TensorRecord | None) -> Difference | None:
    """How far a tensor is apart; None where either run lacks it."""
    if other is None or not (has_elements(one) and has_elements(other)) or 0 in one.shape:
        return None
    return unshaped_difference(one.numpy(), other.numpy())


def _content(record: TensorRecord) -> bytes:
    return np.ascontiguousarray(record.numpy()).tobytes()


def _computes(node: Node) -> bool:
    """Whether it does more than move elements or give them another type, which others do as a matter of course."""
    return class_of(node.op.op_type) not in ("moves", "casts")


def _given_alike(one: Node, other: Node, count: int, within: float) -> NDArray[np.bool_]:
    """Which elements of an output are computed from elements that agree each by itself: an optimizer divides by what is next to nothing."""
    alike = np.ones(count, np.bool_)
    for slot, record in one.inputs.items():
        after = other.inputs.get(slot)
        if after is None or not (has_elements(record) and has_elements(after)) or math.prod(record.shape) != count:
            continue
        mine, its = (each.numpy().astype(np.float64).reshape(-1) for each in (record, after))
        alike &= ~(np.abs(its - mine) > _ALIKE * within * np.abs(mine))
    return alike


def _reach(node: Node, slot: int, kind: str) -> float:
    """How large the summands of an output are together, where they may cancel out."""
    floats = [
        record.numpy().astype(np.float64)
        for record in node.inputs.values()
        if has_elements(record) and epsilon_of(record.dtype) and 0 not in record.shape
    ]
    count = max(1, math.prod(node.outputs[slot].shape))
    if kind == "cube" and len(floats) > 1:
        depth = math.sqrt(floats[0].size * floats[1].size / count)
        return math.sqrt(depth) * _rms(floats[0]) * _rms(floats[1])
    if kind == "computes":
        return max((_rms(each) * math.sqrt(each.size / count) for each in floats if each.size > count), default=0.0)
    return 0.0


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0
