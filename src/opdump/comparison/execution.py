"""Both programs, run on the same values.

The operators that both runs have hand on what A recorded; what only one of them has is computed in float64. So rounding plays no part,
neither does anything that happened before, and where the two programs still disagree, they disagree by what they do.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opdump.adapters.replay import Replayed, replayer_of
from opdump.comparison.differences import same_bits
from opdump.comparison.lifetimes import lifetimes
from opdump.comparison.memory import Memory, Named, widened
from opdump.comparison.nodes import Node
from opdump.comparison.trace import Trace, has_elements, leaf_name
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
