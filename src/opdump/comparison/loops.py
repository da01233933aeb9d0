"""Finds which execution of an operator made an input, and which inputs are a row or a stack of outputs.

A loop runs an operator several times under one name, and an input names only the operator. An operator in the body of a `scan` of JAX reads one row of
a tensor. After the loop, an operator reads the outputs of all iterations as one tensor.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from opdump.comparison.differences import has_elements, has_same_contents, same_bits
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


@dataclass(slots=True)
class _Loops:
    nodes: list[Node]
    _runs: dict[_Name, list[int]] = field(default_factory=lambda: defaultdict(list))
    """The executions of each operator so far."""
    _begun: dict[tuple[_Name, int], set[Place]] = field(default_factory=lambda: defaultdict(set))
    """By the operator and slot that make a carried value, the outputs with which loops began instead."""
    _stacks: dict[Place, list[Place]] = field(default_factory=dict)
    """Inputs, and the outputs that are their rows."""
    _rows: dict[Place, tuple[Place, int]] = field(default_factory=dict)
    """Inputs that are a row of an output."""
    _memory: dict[Place, Memory] = field(default_factory=dict)
    """The memory of outputs, and of inputs as (node, complement of the slot)."""

    def followed(self) -> list[Node]:
        for node in self.nodes:
            self._note_begin(node)
            found = {slot: self._maker(node, slot, maker) for slot, maker in node.makers.items()}
            self.nodes[node.index] = replace(node, makers=found)
            self._runs[_name(node)].append(node.index)
        self._place()
        return [*map(self._placed, self.nodes)]

    def _note_begin(self, node: Node) -> None:
        """Note the makers of what the first execution of an operator reads, if the later ones read values that the loop carries."""
        runs = self._runs[_name(node)]
        first = self.nodes[runs[0]].makers if runs else {}
        for slot, (index, output) in node.makers.items():
            name = _name(self.nodes[index])
            if slot in first and _name(self.nodes[first[slot][0]]) != name:
                self._begun[name, output].add(first[slot])

    def _maker(self, node: Node, slot: int, named: Place) -> Place:
        """The execution that made an input. Notes if the input is a row or a stack of outputs."""
        made = self.nodes[named[0]].outputs.get(named[1])
        if node.inputs[slot].memory is not None or made is None or made.memory is not None:
            return named
        maker = self.nodes[named[0]]
        inside = self._inside(maker, named[1], made)
        if inside is None and len(self._runs[_name(maker)]) == 1 and node.inputs[slot].shape == made.shape:
            return named
        return (inside and self._execution(node, slot, inside)) or self._execution(node, slot, named) or named

    def _inside(self, called: Node, slot: int, made: TensorRecord) -> Place | None:
        """The operator that made the parts of a result of a call, if the result is a stack of outputs of a loop."""
        name, _, output = made.source.rpartition(":")
        runs = self._runs[name, called.op.graph_id] if called.op.repeats_operators and slot not in called.makers else ()
        return (runs[-1], int(output)) if runs else None

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
        """The node with the memory of its tensors. Who reads a whole output with memory reads it from there."""
        read = {slot: replace(node.inputs[slot], memory=memory) for slot, memory in self._read(node)}
        made = {
            slot: replace(record, memory=self._memory[node.index, slot])
            for slot, record in node.outputs.items()
            if (node.index, slot) in self._memory
        }
        return replace(node, inputs={**node.inputs, **read}, outputs={**node.outputs, **made}) if read or made else node

    def _read(self, node: Node) -> Iterator[tuple[int, Memory]]:
        makers: Mapping[int, Place] = node.makers
        for slot, record in node.inputs.items():
            memory = self._memory.get((node.index, ~slot))
            if memory is None and slot in makers and makers[slot] in self._memory:
                memory = self._memory[makers[slot]] if has_same_contents(self._output(makers[slot]), record) else None
            if memory is not None:
                yield slot, memory


def _contiguous(storage: int, offset: int, shape: tuple[int, ...]) -> Memory:
    return Memory(storage, offset, tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape))))
