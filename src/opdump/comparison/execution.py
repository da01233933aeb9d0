"""Runs a step of a program again, operator by operator, on any values. Every comparison that runs operators uses this loop.

In the reference run of A, operators that both runs have pass on what A recorded; operators that only A has are computed in float64. So neither
rounding nor earlier differences play a part, and any remaining disagreement is due to what the programs do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opdump.adapters.replay import Replayed, replayer_of
from opdump.comparison.alignment import Alignment
from opdump.comparison.differences import Array, has_elements, same_bits
from opdump.comparison.memory import Memory, Named, widened
from opdump.comparison.nodes import Node, Place
from opdump.comparison.trace import Lifetimes, Trace, leaf_name, lifetimes
from opdump.doing import note
from opdump.errors import CannotReplayError
from opdump.records import TensorRecord


def recorded(record: TensorRecord) -> Array | None:
    """The recorded elements, floats as float64; None if none were recorded."""
    if not has_elements(record) and 0 not in record.shape:
        return None
    return widened(record.numpy())


Given = Callable[[Node, int], Array | None]
"""Returns the values of an input or an output, by slot, that a run cannot compute; None if they are unknown."""


def recorded_input(node: Node, slot: int) -> Array | None:
    """The recorded elements of an input, as from `recorded`."""
    return recorded(node.inputs[slot])


def recorded_output(node: Node, slot: int) -> Array | None:
    """The recorded elements of an output, as from `recorded`."""
    return recorded(node.outputs[slot])


def recorded_inputs(node: Node) -> dict[int, Array]:
    """The recorded elements of the inputs, by slot, as from `recorded`."""
    return recorded_values({slot: record for slot, record in node.inputs.items() if not record.skip})


def recorded_values(records: Mapping[int, TensorRecord]) -> dict[int, Array]:
    """The recorded elements, as from `recorded`, of those tensors that have any."""
    return {slot: value for slot, record in records.items() if (value := recorded(record)) is not None}


def outputs_of_both(one: Node, other: Node) -> Iterator[tuple[int, Array, Array]]:
    """The slots and the recorded elements of the outputs that both nodes have."""
    for slot, record in other.outputs.items():
        first, second = recorded(one.outputs[slot]) if slot in one.outputs else None, recorded(record)
        if first is not None and second is not None:
            yield slot, first, second


def same_inputs(one: Node, other: Node) -> bool:
    """Whether two nodes read the same bits."""
    first, second = recorded_inputs(one), recorded_inputs(other)
    return first.keys() == second.keys() and all(same_bits(value, second[slot]) for slot, value in first.items())


def replay(node: Node, values: Mapping[int, Array], dtype: str = "float64") -> Replayed | None:
    """Runs the node again on these inputs; None if it cannot be run, or draws random numbers."""
    repeated = _repeated(node)
    if repeated:
        return Replayed({slot: values[slot] for slot in repeated if slot in values}, dtype)
    replayer = replayer_of(node.op)
    if replayer is None:
        return None
    note("running", node.op.op_name, "of step", node.op.step, "again")
    try:
        done = replayer.run(node.op, node.inputs, values, dtype=dtype)
    except CannotReplayError:
        return None
    # A replayer also returns optional outputs that the node does not have (the mean of LayerNormalization).
    return replace(done, outputs={slot: done.outputs[slot] for slot in node.outputs if slot in done.outputs})


def _repeated(node: Node) -> list[int]:
    """The outputs of a call that operators inside it made; in a trace, these are also its inputs."""
    if not node.op.repeats_operators:
        return []
    return [slot for slot in node.makers if slot in node.outputs and node.outputs[slot].source]


def program_outputs(node: Node) -> dict[int, Array]:
    """The recorded outputs or, if the framework ran another operator in its place, what the program's operator computes from the recorded inputs."""
    done = replay(node, recorded_inputs(node)) if node.is_rewritten else None
    return recorded_values(node.outputs) if done is None else dict(done.outputs)


def draws(node: Node) -> bool:
    """Whether the node draws random numbers."""
    replayer = replayer_of(node.op)
    return replayer is not None and replayer.draws(node.op)


@dataclass(slots=True)
class Execution:
    """The state of a program that runs through a step."""

    trace: Trace
    memory: Memory = field(default_factory=Memory)
    leaves: dict[str, Named] = field(default_factory=dict)
    """The contents of named inputs when they were first read."""
    leaf_storages: dict[int, Named] = field(default_factory=dict)
    """The same by storage, for inputs with or without a name."""
    leaf_reads: set[Place] = field(default_factory=set)
    """Inputs that no operator of the step made, by node and slot."""
    writers: dict[Place, frozenset[int]] = field(default_factory=dict)
    """The nodes that wrote each input that any node wrote."""
    unwritten: dict[Place, NDArray[np.bool_]] = field(default_factory=dict)
    """For inputs that operators wrote in part: the elements that no operator wrote."""
    inputs: dict[int, dict[int, Array]] = field(default_factory=dict)
    """Inputs by node, for nodes whose inputs are kept."""
    outputs: dict[int, dict[int, Array]] = field(default_factory=dict)

    def fill(self, node: Node, slot: int, values: Array, only: NDArray[np.bool_] | None = None) -> None:
        """Stores the values of an input that no operator made, or, with `only`, of the elements that no operator made."""
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

    def is_as_recorded(self, node: Node, slot: int, value: Array) -> bool:
        """Whether the value of an input equals the recorded one."""
        if (node.index, slot) in self.leaf_reads:
            return True
        own = recorded_input(node, slot)
        return own is not None and bool(np.array_equal(own, value, equal_nan=own.dtype.kind in "fc"))

    def write(self, node: Node, values: Mapping[int, Array]) -> None:
        """Stores the outputs of a node."""
        for slot, record in node.outputs.items():
            if slot in values and values[slot].size == math.prod(record.shape):
                self.memory.write(node.index, slot, record, values[slot].reshape(record.shape))

    def nodes(
        self, leaf: Given = recorded_input, kept: Collection[int] = (), only: Sequence[Node] | None = None
    ) -> Iterator[tuple[Node, dict[int, Array]]]:
        """Run the step: yield each node in execution order, or `only` these, with its known inputs by slot.

        `leaf` returns the values of inputs that no operator made. The caller passes the outputs to `write` before it takes the next node. Values
        that no later node reads are dropped, except those of the storages in `kept`; with `only`, none are.
        """
        ends = lifetimes(self.trace, kept) if only is None else Lifetimes({}, {})  # a few nodes keep little
        for node in self.trace.nodes if only is None else only:
            slots = [slot for slot, record in node.inputs.items() if not record.skip]
            yield node, {slot: value for slot in slots if (value := self._look_up(node, slot, leaf)) is not None}
            self.memory.release(ends, node.index)

    def _look_up(self, node: Node, slot: int, leaf: Given) -> Array | None:
        """The contents of an input; None if they are not known."""
        place, read = (node.index, slot), self.memory.read(node, slot)
        is_made, is_known = bool(read.writers - {-1}), read.values is not None and read.unknown is None
        if is_made:
            self.writers[place] = read.writers
        given = None if is_made and is_known else leaf(node, slot)
        if is_known and (is_made or given is None):
            return read.values
        if not is_made:
            self.leaf_reads.add(place)
        if given is None:
            return None
        if read.values is None or read.unknown is None or not is_made:
            # The program may have refilled it since it was last read.
            self.fill(node, slot, given)
            return given
        self.unwritten[place] = read.unknown
        values = np.where(read.unknown, given, read.values)
        self.fill(node, slot, values, read.unknown)
        return values


def run_reference(trace: Trace, matched: Mapping[int, int], lasting: Collection[int]) -> Execution:
    """Runs A: recorded values, and float64 for operators that only A has. Storages in `lasting` are kept to the end."""
    run = Execution(trace)
    for node, values in run.nodes(kept=lasting):
        is_computed = node.index not in matched or node.moves
        kept = {
            slot: value for slot, value in values.items() if is_computed or not run.is_as_recorded(node, slot, value)
        }
        if kept:
            run.inputs[node.index] = kept
        outputs = replay(node, values) if is_computed else None
        if outputs is not None:
            run.outputs[node.index] = dict(outputs.outputs)
        run.write(node, program_outputs(node) if outputs is None else outputs.outputs)
    return run


def input_of(run: Execution, node: Node, slot: int) -> Array | None:
    """The value of an input of A in `run_reference`."""
    kept = run.inputs.get(node.index, {})
    if slot in kept:
        return kept[slot]
    return recorded_input(node, slot) if slot in node.inputs and not node.inputs[slot].skip else None


# Values that depend on no input, such as masks, positions and filled tensors. One that the other program lacks is not a cause: the same choice can
# be written as a mask, as indices, or as a sum with infinities. Its readers are examined instead.

_OF_THE_SHAPE: Final = frozenset({"full_like", "new_full", "new_ones", "new_zeros", "ones_like", "zeros_like"})
"""Types of operators that use only the shape of an input."""


@dataclass(slots=True)
class Constants:
    """The operators of an execution that depend on no data, parameter, state or random number."""

    run: Execution
    _known: dict[int, bool] = field(default_factory=lambda: {-1: False})
    """By node; -1 stands for values that no operator made."""

    def __contains__(self, index: object) -> bool:
        """Whether the output of a node, which must have run, is a constant."""
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


# Looks up the initial values of one program (parameters, states, data, values without a known maker) for inputs of the other.


@dataclass(slots=True)
class StepInputs:
    """The initial values of an execution: the first by storage, later ones only if they differ."""

    run: Execution
    alignment: Alignment
    """The alignment with the other program, B."""
    _later: dict[Place, Array] = field(default_factory=dict)
    _a_of_storage: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self._a_of_storage = {there: here for here, there in self.alignment.storages.items()}

    def add(self, node: Node, slot: int, value: Array) -> bool:
        """Adds the value of an input that no operator made. Returns whether its storage had that value when it was first read."""
        first = self._first(node, slot)
        is_first = first is not None and same_bits(first, value)
        if not is_first:
            self._later[node.index, slot] = value
        return is_first

    def read_by(self, index: int, slot: int) -> Array | None:
        """The value of an input of a node; None if an operator made it."""
        if (index, slot) not in self.run.leaf_reads:
            return None
        later = self._later.get((index, slot))
        return self._first(self.run.trace.nodes[index], slot) if later is None else later

    def of_b(self, node: Node, slot: int) -> Iterator[Array]:
        """Candidates for the value of an input of B: by storage, by name, and by the operator that reads it."""
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
