"""Which row of a step's columns is which tensor, and which of its operators sum: what is the same wherever the same operators run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from opdump.comparison.value_columns import Bools, Floats, Places

if TYPE_CHECKING:
    from opdump.comparison.trace import Node

Slot = tuple[int, int]
"""A node and a slot of its outputs, or of its inputs."""

OF_LISTS: Final = "_foreach_"
"""What the names of operators begin with that do the same to each of a list of tensors."""
_PRODUCTS: Final = frozenset({"mm", "bmm", "mv", "dot"})
_SUMS: Final = _PRODUCTS | {"sum", "mean", "add", "sub", "rsub", "addmm", "baddbmm", "cumsum", "convolution"}


class StepRows:
    """The outputs of all nodes, then their inputs."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
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
            kind, factor, summands = kind_of(node), 1.0, rows
            if _is_gradient(node):
                summands = rows[:1]
            elif kind in _PRODUCTS and len(rows) == 2:
                summands = []
            elif kind == "mean":
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
    if not node.bare_type.startswith(OF_LISTS) or count < 2 or len(slots) % count:
        return slots
    return slots[sorted(node.outputs).index(slot) :: count]


def kind_of(node: Node) -> str:
    """What an operator does, to one tensor or to each of a list."""
    return node.bare_type.removeprefix(OF_LISTS)


def _is_gradient(node: Node) -> bool:
    return node.op.phase == "backward" and node.bare_type.endswith("backward")


def _may_cancel(node: Node) -> bool:
    return _is_gradient(node) or kind_of(node) in _SUMS
