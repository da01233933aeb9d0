"""What is the same wherever the same operators run: which row of a step's columns is which tensor, who reads what, where it ends, what sums."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from opdump.comparison.differences import epsilon_of
from opdump.comparison.nodes import Node, may_leave_results, place_in_list
from opdump.comparison.value_columns import Bools, Floats, Places
from opdump.records import TensorRecord

Slot = tuple[int, int]
"""A node and a slot of its outputs, or of its inputs."""

OF_LISTS: Final = "_foreach_"
"""What the names of operators begin with that do the same to each of a list of tensors."""
_FUSED: Final = "_fused_"
"""What the names of operators begin with that are all of an optimizer's step."""
_SHARE: Final = 0.1
"""A type that at least this share of the values of a run has is its choice, and no accident."""
PRODUCTS: Final = frozenset({"MatMul", "BatchMatMul"})
"""Concepts of products of matrices."""
_CONVOLUTIONS: Final = frozenset({"Conv1D", "Conv2D", "Conv3D"})
_SUMS: Final = PRODUCTS | _CONVOLUTIONS | {"ReduceSum", "ReduceMean", "Add", "AddN", "Sub", "CumSum", "BiasAddGrad"}
"""Concepts of operators whose outputs are sums."""


class StepRows:
    """The outputs of all nodes, then their inputs."""

    def __init__(self, nodes: Sequence[Node], finals: Collection[TensorRecord] = ()) -> None:
        self._nodes, self._finals = nodes, finals
        self.outputs: list[Slot] = [(node.index, slot) for node in nodes for slot in node.outputs]
        self.inputs: list[Slot] = [(node.index, slot) for node in nodes for slot in node.inputs]
        self.of_output: Mapping[Slot, int] = {place: row for row, place in enumerate(self.outputs)}
        self.of_input: Mapping[Slot, int] = {
            place: row for row, place in enumerate(self.inputs, start=len(self.outputs))
        }
        self.leaves: Places = np.array(
            [row for (index, slot), row in self.of_input.items() if slot not in nodes[index].makers], np.intp
        )
        """The rows of inputs that no operator was seen to make."""
        self._sums: tuple[Bools, _Sums] | None = None
        self._ends: tuple[Bools, list[Slot]] | None = None
        self._partners: tuple[StepRows, Mapping[int, int], Places] | None = None

    @cached_property
    def users(self) -> Mapping[Slot, list[Slot]]:
        """Who reads each output."""
        found: dict[Slot, list[Slot]] = {}
        for node in self._nodes:
            for slot, maker in node.makers.items():
                found.setdefault(maker, []).append((node.index, slot))
        return found

    @cached_property
    def usual_rounding(self) -> float:
        """The coarsest rounding, beyond that of float32, of the types that a good part of the outputs has."""
        counts: dict[float, int] = {}
        for node in self._nodes:
            for record in node.outputs.values():
                epsilon = epsilon_of(record.dtype)
                if epsilon:
                    counts[epsilon] = counts.get(epsilon, 0) + 1
        few = _SHARE * sum(counts.values())
        usual = [each for each, count in counts.items() if count >= few and each > epsilon_of("float32")]
        return max(usual, default=0.0)

    def partners(self, other: StepRows, matched: Mapping[int, int]) -> Places:
        """The row of each output of the matched operator of the other run; -1 where there is none."""
        if self._partners is None or self._partners[0] is not other or self._partners[1] is not matched:
            rows = [other.of_output.get((matched.get(index, -1), slot), -1) for index, slot in self.outputs]
            self._partners = other, matched, np.array(rows, np.intp)
        return self._partners[2]

    def ends(self, told: Bools) -> list[Slot]:
        """What the step leaves: the last writes to what was there before it; where nothing of it is written, what nobody reads."""
        return self.written(told) or self.unread

    def written(self, told: Bools) -> list[Slot]:
        """The last writes to what was there before the step. `told` says of which rows there are statistics."""
        if self._ends is None or not np.array_equal(self._ends[0], told):
            self._ends = told, self._written(told)
        return self._ends[1]

    def _written(self, told: Bools) -> list[Slot]:
        before = {record.memory.storage for record in self._finals if record.memory is not None}
        first: dict[int, str] = {}
        written: dict[tuple[int, int], Slot] = {}
        for node in self._nodes:
            for record in node.inputs.values():
                if record.memory is None or record.skip:
                    continue
                made_in = first.get(record.memory.storage)
                if made_in is None or (made_in == "forward" and node.op.phase == "optimizer"):
                    before.add(record.memory.storage)
            for slot, record in node.outputs.items():
                if record.memory is not None and told[self.of_output[node.index, slot]]:
                    first.setdefault(record.memory.storage, node.op.phase)
                    written[record.memory.storage, record.memory.offset] = (node.index, slot)
        return [place for (storage, _), place in written.items() if storage in before]

    @cached_property
    def unread(self) -> list[Slot]:
        """First outputs that no operator makes anything of, of operators that may leave results: losses."""
        nodes = self._nodes
        read = {
            maker
            for maker, readers in self.users.items()
            if any(nodes[each].outputs and not nodes[each].bare_type.endswith("_like") for each, _ in readers)
        }
        return [
            (node.index, 0)
            for node in nodes
            if may_leave_results(node) and 0 in node.outputs and (node.index, 0) not in read
        ]

    def shares_left(self, norms: Floats, told: Bools) -> Floats:
        """How large each output is, as a part of what its summands are, by the norms of all rows; infinite for what is no sum."""
        if self._sums is None or not np.array_equal(self._sums[0], told):
            self._sums = told, self._read_sums(told)
        return self._sums[1].shares_left(norms, len(self.outputs))

    def _read_sums(self, told: Bools) -> _Sums:
        outputs: list[int] = []
        first: list[int] = []
        second: list[int] = []
        rest: list[int] = []
        starts: list[int] = []
        factors: list[float] = []
        for row, (index, slot) in enumerate(self.outputs):
            node = self._nodes[index]
            if not told[row] or not _may_cancel(node):
                continue
            slots = inputs_of(node, slot)
            rows = [each for each in (self.of_input[index, place] for place in slots) if told[each]]
            if not rows:
                continue
            factor, summands = 1.0, rows
            if _is_gradient(node):
                summands = rows[:1]
            elif len(rows) == 2 and not node.concepts.isdisjoint(PRODUCTS):
                summands = []
            elif "ReduceMean" in node.concepts:
                sizes = math.prod(node.outputs[slot].shape), math.prod(node.inputs[slots[0]].shape)
                factor = math.sqrt(sizes[0] / max(1, sizes[1]))
            outputs.append(row)
            first.append(rows[0])
            second.append(rows[1] if not summands else -1)
            starts.append(len(rest))
            rest += summands or rows
            factors.append(factor)
        columns = [np.array(each, np.intp) for each in (outputs, first, second, rest, starts)]
        return _Sums(columns[0], columns[1], columns[2], columns[3], columns[4], np.array(factors, np.float64))


@dataclass(frozen=True, slots=True, eq=False)
class _Sums:
    """The outputs that are sums. Of products of two, the rows of both; of others, the rows of the summands from `starts` on."""

    outputs: Places
    first: Places
    second: Places
    rest: Places
    starts: Places
    factors: Floats

    def shares_left(self, norms: Floats, count: int) -> Floats:
        found = np.full(count, np.inf)
        if not len(self.outputs):
            return found
        with np.errstate(all="ignore"):  # norms may be infinite
            of_sums = np.maximum.reduceat(norms[self.rest], self.starts) * self.factors
            scales = np.where(self.second < 0, of_sums, norms[self.first] * norms[self.second])
            mine = norms[self.outputs]
            shares = mine / scales
        shares[~np.isfinite(mine) | (scales == 0)] = np.inf
        found[self.outputs] = shares
        return found


def inputs_of(node: Node, slot: int) -> list[int]:
    """The inputs that an output is made of: all, but where an operator does the same to each of a list of tensors."""
    slots, count = sorted(node.inputs), len(node.outputs)
    if is_fused(node) and (place := place_in_list(node.outputs[slot])):
        return sorted([*node.inputs_by_place.get(place, ()), *node.inputs_by_place.get("", ())])
    if not node.bare_type.startswith(OF_LISTS) or count < 2 or len(slots) % count:
        return slots
    return slots[sorted(node.outputs).index(slot) :: count]


def is_fused(node: Node) -> bool:
    """Whether it is all of an optimizer's step, for each of a list of parameters: `_fused_adam_`."""
    return node.op.phase == "optimizer" and node.bare_type.startswith(_FUSED)


def _is_gradient(node: Node) -> bool:
    return node.op.phase == "backward" and node.bare_type.endswith("backward")


def _may_cancel(node: Node) -> bool:
    return _is_gradient(node) or not node.concepts.isdisjoint(_SUMS)
