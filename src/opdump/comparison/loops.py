"""Finds which execution of an operator made an input, and which inputs are a row or a stack of outputs.

A loop runs an operator several times under one name, and an input names only the operator. An operator in the body of a `scan` of JAX reads one row of
a tensor. After the loop, an operator reads the outputs of all iterations as one tensor.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.differences import digest_of, has_elements, has_same_contents, same_bits
from opdump.comparison.nodes import Node, Place, storages_of
from opdump.records import Memory, TensorRecord


def with_executions(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes with the makers of inputs that operators in loops made. The makers of `nodes` are the latest operators of their names.

    Rows and stacks get memory in the storage of their makers. They are found by their elements, so only if these were recorded.
    """
    names = {_name(node) for node in nodes}
    return [*nodes] if len(names) == len(nodes) else _Loops([*nodes]).followed()


_Name = tuple[str, int]
"""The name of an operator and the number of its graph."""


def _name(node: Node) -> _Name:
    return node.op.op_name, node.op.graph_id


@dataclass(frozen=True, slots=True)
class _Stack:
    """Outputs as the rows of one tensor."""

    rows: Sequence[TensorRecord]

    def to_host(self) -> NDArray[Any]:
        """Return the elements."""
        return np.stack([row.numpy() for row in self.rows])


@dataclass(slots=True)
class _Loops:
    nodes: list[Node]
    _runs: dict[_Name, list[int]] = field(default_factory=lambda: defaultdict(list))
    """The executions of each operator so far."""
    _begun: dict[tuple[_Name, int], set[Place]] = field(default_factory=lambda: defaultdict(set))
    """By the operator and slot that make a carried value, the outputs with which loops began instead."""
    _stacks: dict[Place, list[Place]] = field(default_factory=dict)
    """Inputs, and the outputs that are their rows."""
    _by_digest: dict[int, dict[bytes, Place]] = field(default_factory=dict)
    """The rows of a stack that a call returned, by the identity of its list in `_stacks`: of equal rows, the first."""
    _followed: set[Place] = field(default_factory=set)
    """Results of calls whose readers are linked to the operators in the call."""
    _parts: set[Place] = field(default_factory=set)
    """The inputs of these readers."""
    _rows: dict[Place, tuple[Place, int]] = field(default_factory=dict)
    """Inputs that are a row of an output."""
    _memory: dict[Place, Memory] = field(default_factory=dict)
    """The memory of outputs, and of inputs as (node, complement of the slot)."""

    def followed(self) -> list[Node]:
        for node in self.nodes:
            self._note_begin(node)
            found = {slot: self._maker(node, slot, maker) for slot, maker in node.makers.items()}
            self.nodes[node.index] = self._with_stacks(replace(node, makers=found))
            self._runs[_name(node)].append(node.index)
        self._place()
        return [self._without_followed(self._placed(node)) for node in self.nodes]

    def _note_begin(self, node: Node) -> None:
        """Note the makers of what the first execution of an operator in a loop reads, if the next one reads a value that the loop carries."""
        runs = self._runs[_name(node)]
        before = self.nodes[runs[-1]].makers if runs else {}
        for slot, (index, output) in node.makers.items():
            name = _name(self.nodes[index])
            if slot in before and _name(self.nodes[before[slot][0]]) != name:
                self._begun[name, output].add(before[slot])

    def _maker(self, node: Node, slot: int, named: Place) -> Place:
        """The execution that made an input. Notes if the input is a row or a stack of outputs."""
        made = self.nodes[named[0]].outputs.get(named[1])
        if node.inputs[slot].memory is not None or made is None or made.memory is not None:
            return named
        stack = self._stacks.get((named[0], ~named[1])) if self.nodes[named[0]].op.repeats_operators else None
        if stack is not None:
            part = self._part(node, slot, made, stack)
            if part is not None:
                self._followed.add(named)
                self._parts.add((node.index, slot))
            return part or named
        if len(self._runs[_name(self.nodes[named[0]])]) == 1 and node.inputs[slot].shape == made.shape:
            return named
        return self._execution(node, slot, named) or named

    def _with_stacks(self, node: Node) -> Node:
        """The node. If results of a call are stacks of outputs of a loop in it, the call also has these stacks as inputs, and no arguments."""
        stacks = self._stacks_of_call(node)
        if not stacks:
            return node
        repeated = [
            slot
            for slot in node.makers
            if slot in node.outputs and node.inputs[slot].source == node.outputs[slot].source
        ]
        inputs = {slot: node.inputs[slot] for slot in repeated} | {slot: self._stacked(node, slot) for slot in stacks}
        return replace(node, inputs=inputs, makers={slot: node.makers[slot] for slot in repeated} | stacks)

    def _stacks_of_call(self, node: Node) -> dict[int, Place]:
        """The results of a call that are stacks of outputs of a loop in it, and the latest of these outputs."""
        found: dict[int, Place] = {}
        for slot, made in node.outputs.items() if node.op.repeats_operators else ():
            name, _, output = made.source.rpartition(":")
            runs = self._runs[name, node.op.graph_id] if output.isdigit() and slot not in node.makers else []
            places = self._rows_of_call(made, [(index, int(output)) for index in runs])
            if places:
                self._stacks[node.index, ~slot] = places
                found[slot] = max(places)
        return found

    def _stacked(self, node: Node, slot: int) -> TensorRecord:
        """A result of a call as the operators in it made it. The result itself may be rounded differently."""
        rows = [self._output(place) for place in self._stacks[node.index, ~slot]]
        return replace(node.outputs[slot], io="input", payload=_Stack(rows), statistics={})

    def _rows_of_call(self, made: TensorRecord, runs: Sequence[Place]) -> list[Place]:
        """The outputs that are the rows of a stack that a call returned, in the order that is nearest to its values. Empty if it is not such a stack.

        A loop may run from the last row to the first, and stack what its iterations read instead of what they make. XLA compiles a call as a whole, so
        it may round differently from the recorded operators.
        """
        if not made.shape or not 0 < made.shape[0] <= len(runs):
            return []
        runs = runs[-made.shape[0] :]
        name = _name(self.nodes[runs[0][0]])
        read = [[first, *runs[:-1]] for first in self._begun[name, runs[0][1]]]
        orders = [order for each in ([*runs], *read) for order in (each, each[::-1]) if self._are_rows(made, order)]
        values = _wide(made) if orders else None
        return [] if values is None else min(orders, key=lambda order: self._distance(values, order))

    def _are_rows(self, made: TensorRecord, places: Sequence[Place]) -> bool:
        outputs = [made, *map(self._output, places)]
        return all(map(has_elements, outputs)) and all(each.shape == made.shape[1:] for each in outputs[1:])

    def _distance(self, values: NDArray[Any], places: Sequence[Place]) -> float:
        """The largest difference between rows and outputs; NaN counts as no difference."""
        outputs = np.stack([_wide(self._output(place)) for place in places])
        with np.errstate(invalid="ignore"):
            return float(np.fmax.reduce(np.abs(values - outputs), axis=None, initial=0.0))

    def _part(self, node: Node, slot: int, made: TensorRecord, stack: list[Place]) -> Place | None:
        """The maker of an input that is a stack that a call returned, or a row of it."""
        record = node.inputs[slot]
        if has_same_contents(made, record):
            self._stacks[node.index, ~slot] = stack
            return max(stack)
        if not has_elements(record) or record.shape != made.shape[1:]:
            return None
        rows = self._by_digest.get(id(stack))
        if rows is None:
            digests = [*map(digest_of, made.numpy())]
            rows = self._by_digest[id(stack)] = dict(zip(reversed(digests), reversed(stack), strict=True))
        return rows.get(digest_of(record.numpy()))

    def _execution(self, node: Node, slot: int, latest: Place) -> Place | None:
        """The execution of the operator at `latest` that made an input; None if none has its elements."""
        record, made = node.inputs[slot], self._output(latest)
        name = _name(self.nodes[latest[0]])
        places = [(index, latest[1]) for index in reversed(self._runs[name])]
        if record.shape == made.shape:
            likely = (*places, *self._begun[name, latest[1]]) if len(places) > 1 else places
            return next((place for place in likely if has_same_contents(self._output(place), record)), None)
        if not has_elements(record) or not all(has_elements(self._output(place)) for place in places):
            return None
        if record.shape == made.shape[1:]:
            return self._row_of((node.index, ~slot), record, places)
        if record.shape[1:] == made.shape and record.shape[0] <= len(places):
            return self._stack((node.index, ~slot), record, places[: record.shape[0]])
        return None

    def _row_of(self, reader: Place, record: TensorRecord, places: Sequence[Place]) -> Place | None:
        values = record.numpy()
        for place in places:
            for row, each in enumerate(self._output(place).numpy()):
                if same_bits(each, values):
                    self._rows[reader] = place, row
                    return place
        return None

    def _stack(self, reader: Place, record: TensorRecord, latest: Sequence[Place]) -> Place | None:
        """Note the outputs that are the rows of an input, and return the latest. A loop may fill them from the first to the last, or from the last."""
        values = record.numpy()
        for places in ([*reversed(latest)], [*latest]):
            if all(same_bits(self._output(place).numpy(), row) for place, row in zip(places, values, strict=True)):
                self._stacks[reader] = places
                return latest[0]
        return None

    def _output(self, place: Place) -> TensorRecord:
        return self.nodes[place[0]].outputs[place[1]]

    def _place(self) -> None:
        """Assign memory to the outputs that have rows or are rows, and to their readers."""
        used = [
            storage for node in self.nodes for storage in storages_of((*node.inputs.values(), *node.outputs.values()))
        ]
        free = max(used, default=-1) + 1
        for reader, places in self._stacks.items():
            if ~reader[1] not in self.nodes[reader[0]].inputs:
                continue  # an argument of a call that repeats the operators in it
            size = math.prod(self._output(places[0]).shape)
            if not any(place in self._memory for place in places):
                for row, place in enumerate(places):
                    self._memory[place] = _contiguous(free, row * size, self._output(place).shape)
                free += 1
            found = [self._memory.get(place) for place in places]
            first = found[0]
            if first is not None and all(
                each is not None and (each.storage, each.offset) == (first.storage, first.offset + row * size)
                for row, each in enumerate(found)
            ):
                shape = self.nodes[reader[0]].inputs[~reader[1]].shape
                self._memory[reader] = _contiguous(first.storage, first.offset, shape)
        for reader, (place, row) in self._rows.items():
            if place not in self._memory:
                self._memory[place] = _contiguous(free, 0, self._output(place).shape)
                free += 1
            shape = self._output(place).shape[1:]
            whole = self._memory[place]
            self._memory[reader] = _contiguous(whole.storage, whole.offset + row * math.prod(shape), shape)

    def _placed(self, node: Node) -> Node:
        """The node with the memory of its tensors. A reader of a whole output that has memory reads it from there."""
        read = {slot: replace(node.inputs[slot], memory=memory) for slot, memory in self._read(node)}
        made = {
            slot: replace(record, memory=self._memory[node.index, slot])
            for slot, record in node.outputs.items()
            if (node.index, slot) in self._memory
        }
        return replace(node, inputs={**node.inputs, **read}, outputs={**node.outputs, **made}) if read or made else node

    def _without_followed(self, node: Node) -> Node:
        """The node without the results that operators in it made for operators after it. They are not results of the step."""
        left = [slot for slot in node.outputs if (node.index, slot) not in self._followed]
        if len(left) == len(node.outputs):
            return node
        kept = {slot: record for slot, record in node.inputs.items() if slot in left}
        outputs = {slot: node.outputs[slot] for slot in left}
        return replace(node, inputs=kept, outputs=outputs, makers={slot: node.makers[slot] for slot in kept})

    def _read(self, node: Node) -> Iterator[tuple[int, Memory]]:
        makers: Mapping[int, Place] = node.makers
        for slot, record in node.inputs.items():
            memory = self._memory.get((node.index, ~slot))
            if memory is None and slot in makers and makers[slot] in self._memory:
                is_certain = (node.index, slot) in self._parts or has_same_contents(self._output(makers[slot]), record)
                memory = self._memory[makers[slot]] if is_certain else None
            if memory is not None:
                yield slot, memory


def _wide(record: TensorRecord) -> NDArray[Any]:
    values = record.numpy()
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def _contiguous(storage: int, offset: int, shape: tuple[int, ...]) -> Memory:
    return Memory(storage, offset, tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape))))
