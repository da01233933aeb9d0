"""Both programs, run on the same values.

The operators that both runs have hand on what A recorded; what only one of them has is computed in float64. So rounding plays no part,
neither does anything that happened before, and where the two programs still disagree, they disagree by what they do.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdump.adapters.replay import Replayed, replayer_of
from opdump.comparison.alignment import Alignment
from opdump.comparison.differences import same_bits
from opdump.comparison.memory import Memory, Named, widened
from opdump.comparison.nodes import Node
from opdump.comparison.trace import Trace, has_elements, leaf_name, lifetimes
from opdump.doing import note
from opdump.errors import CannotReplayError
from opdump.records import TensorRecord

Array = NDArray[Any]


def recorded(record: TensorRecord) -> Array | None:
    """The recorded elements, floats as float64; None where there are none."""
    if not has_elements(record) and 0 not in record.shape:
        return None
    return widened(record.numpy())


def recorded_inputs(node: Node) -> dict[int, Array]:
    """The recorded elements of the inputs by slot, as `recorded` gives them."""
    given = {slot: recorded(record) for slot, record in node.inputs.items() if not record.skip}
    return {slot: value for slot, value in given.items() if value is not None}


def same_inputs(one: Node, other: Node) -> bool:
    """Whether two nodes read the same, bit by bit."""
    first, second = recorded_inputs(one), recorded_inputs(other)
    return first.keys() == second.keys() and all(same_bits(value, second[slot]) for slot, value in first.items())


def replay(node: Node, values: Mapping[int, Array], dtype: str = "float64") -> Replayed | None:
    """The node, run again on these inputs; None where it cannot be run, or draws random numbers."""
    replayer = replayer_of(node.op)
    if replayer is None:
        return None
    note("running", node.op.op_name, "of step", node.op.step, "again")
    try:
        done = replayer.run(node.op, node.inputs, values, dtype=dtype)
    except CannotReplayError:
        return None
    # A replayer gives outputs too that the program had left out (the mean of LayerNormalization): they are nothing of the node.
    return replace(done, outputs={slot: done.outputs[slot] for slot in node.outputs if slot in done.outputs})


def draws(node: Node) -> bool:
    """Whether the node draws random numbers."""
    replayer = replayer_of(node.op)
    return replayer is not None and replayer.draws(node.op)


@dataclass(slots=True)
class Execution:
    """A program on its way through a step."""

    trace: Trace
    memory: Memory = field(default_factory=Memory)
    leaves: dict[str, Named] = field(default_factory=dict)
    """What named inputs held when they were read first."""
    leaf_storages: dict[int, Named] = field(default_factory=dict)
    """The same by storage, with or without a name."""
    leaf_reads: set[tuple[int, int]] = field(default_factory=set)
    """Inputs that no operator of the step made, by node and slot."""
    writers: dict[tuple[int, int], frozenset[int]] = field(default_factory=dict)
    """Which nodes wrote an input; of those that some node wrote."""
    unwritten: dict[tuple[int, int], NDArray[np.bool_]] = field(default_factory=dict)
    """Of inputs that operators wrote a part of: the elements that none did."""
    inputs: dict[int, dict[int, Array]] = field(default_factory=dict)
    """Inputs by node, of those nodes whose inputs are kept."""
    outputs: dict[int, dict[int, Array]] = field(default_factory=dict)

    def fill(self, node: Node, slot: int, values: Array, only: NDArray[np.bool_] | None = None) -> None:
        """An input that no operator made holds these values; where an operator made a part of it, the rest of them."""
        record = node.inputs[slot]
        name = leaf_name(record)
        held: Named | None = None
        if record.memory is not None:
            self.memory.write(-1, slot, record, values, only)
            is_new = record.memory.storage not in self.leaf_storages
            held = self.memory.named(record) if name or is_new else None
            if is_new and held is not None:
                self.leaf_storages[record.memory.storage] = held
        if name:
            first = self.leaves.get(name)
            self.leaves[name] = (
                Named(record.dtype, values, None) if held is None else held if first is None else first.and_what(held)
            )

    def write(self, node: Node, values: Mapping[int, Array]) -> None:
        """The node gave these outputs."""
        for slot, record in node.outputs.items():
            if slot in values and values[slot].size == _size(record):
                self.memory.write(node.index, slot, record, values[slot].reshape(record.shape))

    def is_made(self, node: Node, slot: int) -> bool:
        """Whether operators made all of an input."""
        read = self.memory.read(node, slot)
        return read.values is not None and read.unknown is None and bool(read.writers - {-1})

    def look_up(self, node: Node, slot: int, leaf: Array | None) -> Array | None:
        """What an input holds; `leaf` is for what no operator made. None where neither is known."""
        read = self.memory.read(node, slot)
        if read.writers - {-1}:
            self.writers[node.index, slot] = read.writers
        is_made = bool(read.writers - {-1})
        if read.values is not None and read.unknown is None and (is_made or leaf is None):
            return read.values
        if not is_made:
            self.leaf_reads.add((node.index, slot))
        if leaf is None:
            return None
        if not is_made:
            # The program may have filled it anew since it was read.
            self.fill(node, slot, leaf)
            return leaf
        if read.unknown is not None:
            self.unwritten[node.index, slot] = read.unknown
        values = leaf if read.values is None or read.unknown is None else np.where(read.unknown, leaf, read.values)
        self.fill(node, slot, values, read.unknown)
        return values


def _size(record: TensorRecord) -> int:
    return math.prod(record.shape)


def run_reference(trace: Trace, matched: Mapping[int, int], lasting: Collection[int]) -> Execution:
    """Runs A: its recorded values, and float64 where only A has the operator. What is in `lasting` is there at the end."""
    run = Execution(trace)
    ends = lifetimes(trace, lasting)
    for node in trace.nodes:
        values: dict[int, Array] = {}
        kept: dict[int, Array] = {}
        for slot, record in node.inputs.items():
            if record.skip:
                continue
            own = recorded(record)
            value = run.look_up(node, slot, own)
            if value is None:
                continue
            values[slot] = value
            if (
                node.index not in matched
                or node.moves
                or own is None
                or not np.array_equal(own, value, equal_nan=own.dtype.kind in "fc")
            ):
                kept[slot] = value
        if kept:
            run.inputs[node.index] = kept
        outputs = None if node.index in matched and not node.moves else replay(node, values)
        if outputs is None:
            given = {slot: recorded(record) for slot, record in node.outputs.items()}
            run.write(node, {slot: value for slot, value in given.items() if value is not None})
        else:
            run.outputs[node.index] = dict(outputs.outputs)
            run.write(node, outputs.outputs)
        run.memory.release(ends, node.index)
    return run


def input_of(run: Execution, node: Node, slot: int) -> Array | None:
    """What an input of A held in `run_reference`."""
    kept = run.inputs.get(node.index, {})
    if slot in kept:
        return kept[slot]
    record = node.inputs.get(slot)
    return None if record is None or record.skip else recorded(record)


# Values that a program makes of nothing: masks, positions, filled tensors.
#
# One that the other program has nowhere is no cause by itself: the same choice is written as a mask, as indices, or as a sum with infinities. Who
# reads it is asked.

_OF_THE_SHAPE: Final = frozenset({"full_like", "new_full", "new_ones", "new_zeros", "ones_like", "zeros_like"})
"""Types of operators that ask an input for its shape alone."""


@dataclass(slots=True)
class Constants:
    """The operators of an execution that depend on no data, parameter, state or random number."""

    run: Execution
    _known: dict[int, bool] = field(default_factory=lambda: {-1: False})
    """By node; -1 stands for what no operator made."""

    def __contains__(self, index: object) -> bool:
        """Whether a node gives a constant. It has run."""
        assert isinstance(index, int)
        waiting = [index]
        while waiting:
            makers = self._makers(waiting[-1])
            unknown = makers - self._known.keys()
            if unknown:
                waiting.extend(unknown)
            else:
                last = waiting.pop()
                if last not in self._known:
                    self._known[last] = not draws(self.run.trace.nodes[last]) and all(
                        self._known[each] for each in makers
                    )
        return self._known[index]

    def _makers(self, index: int) -> set[int]:
        if index in self._known:
            return set()
        node = self.run.trace.nodes[index]
        if node.bare_type in _OF_THE_SHAPE:
            return set()
        read = (slot for slot in node.inputs if not node.clears(slot) and not node.overwrites(slot))
        return set().union(*(self.run.writers.get((index, slot), {-1}) for slot in read)) - {index}


# What a program began with, looked up for inputs of another one: parameters, states, data, and values that no operator was seen to make.


@dataclass(slots=True)
class Leaves:
    """Those of one execution. What was read first is held by storage; of what was read later, only what is something else."""

    run: Execution
    alignment: Alignment
    """With the other program, B."""
    _later: dict[tuple[int, int], Array] = field(default_factory=dict)
    _a_of_storage: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self._a_of_storage = {there: here for here, there in self.alignment.storages.items()}

    def add(self, node: Node, slot: int, value: Array) -> bool:
        """An input that no operator made held this; tells whether that is what its storage held when it was read first."""
        first = self._first(node, slot)
        is_first = first is not None and same_bits(first, value)
        if not is_first:
            self._later[node.index, slot] = value
        return is_first

    def read_by(self, index: int, slot: int) -> Array | None:
        """What an input of a node held; None where an operator made it."""
        if (index, slot) not in self.run.leaf_reads:
            return None
        later = self._later.get((index, slot))
        return self._first(self.run.trace.nodes[index], slot) if later is None else later

    def of_b(self, node: Node, slot: int) -> Iterator[Array]:
        """What may be an input of B: by the storage, by the name, and by the operator that reads it."""
        record = node.inputs[slot]
        storage = None if record.memory is None else self._a_of_storage.get(record.memory.storage)
        for held in (
            None if storage is None else self.run.leaf_storages.get(storage),
            self.run.leaves.get(leaf_name(record)),
        ):
            value = None if held is None else held.seen_as(record)
            if value is not None:
                yield value
        partner = self.alignment.a_of.get(node.index)
        read = None if partner is None else self.read_by(partner, slot)
        if read is not None:
            yield read

    def _first(self, node: Node, slot: int) -> Array | None:
        record = node.inputs[slot]
        held = None if record.memory is None else self.run.leaf_storages.get(record.memory.storage)
        return None if held is None else held.seen_as(record)
