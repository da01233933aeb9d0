"""What a step results in: the values that leave it or last."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain
from typing import Final

from opdump.comparison.accuracy import distance
from opdump.comparison.differences import digest_of, epsilon_of, has_elements, same_bits, same_statistics
from opdump.comparison.end_state import gradients, read_as_number
from opdump.comparison.execution import draws, recorded
from opdump.comparison.nodes import Node, Place, may_leave_results, storages_of
from opdump.comparison.trace import Trace, leaf_name, names_a_state
from opdump.op_types import is_dispatched
from opdump.records import TensorRecord

_SHAPES: Final = re.compile("(tensor|dynamic|variable)?_?(shape|size|rank|numel)n?", re.IGNORECASE)
"""Names of operators that return the shape of a tensor, in all frameworks."""
_ONLY_SHAPES: Final = frozenset({"ones_like", "zeros_like", "full_like", "oneslike", "zeroslike", "fulllike", "shape"})


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a step. Inputs are identified by the complement of their slot: inputs that the program reads as numbers and no operator made, and
    inputs of operators without outputs, such as an assignment to a variable.
    """

    given: Sequence[Place]
    """Outputs that no operator reads, and tensors that the program reads as numbers."""
    written: Sequence[Place]
    """The last writes to memory from before the step, and the inputs of assignments to variables."""

    def without(self, nodes: AbstractSet[int], left: AbstractSet[Place]) -> Results:
        """The same, without the results of these nodes that are not in `left`."""
        given, written = (
            [each for each in places if each[0] not in nodes or each in left] for places in (self.given, self.written)
        )
        return Results(given, written)

    def all(self) -> list[Place]:
        """Each result once, in execution order."""
        return sorted({*self.given, *self.written})


def results(trace: Trace) -> Results:
    """The results of a step."""
    readers = _numbers_of_readers(trace)
    trains = not all(map(may_leave_results, trace.nodes))
    fixed = _fixed(trace) | trace.unreturned

    def varying(places: Iterable[Place]) -> list[Place]:
        return [place for place in places if place[0] not in fixed]

    as_numbers: set[Place] = set()
    assigned: set[Place] = set()
    found: set[Place] = set()
    for node in trace.nodes:
        given = {slot: record for slot, record in node.inputs.items() if not record.skip}
        if read_as_number(node):
            as_numbers.update(
                node.makers.get(slot, (node.index, ~slot))
                for slot, record in given.items()
                if math.prod(record.shape) == 1
            )
        elif not node.outputs and is_of_graph(node):
            (as_numbers if 0 in node.inputs else assigned).update((node.index, ~slot) for slot in given)
        elif may_leave_results(node) or not trains:
            found.update((node.index, slot) for slot in _left_unread(node, readers))
    written = varying(_last_writes(trace))
    return Results(sorted(as_numbers.union(varying(found - set(written)))), [*written, *sorted(assigned)])


def _numbers_of_readers(trace: Trace) -> Counter[Place]:
    return Counter(chain.from_iterable(node.makers.values() for node in trace.nodes if not reads_only_shapes(node)))


def _left_unread(node: Node, readers: Mapping[Place, int]) -> Iterator[int]:
    """The slots of the outputs that no operator reads and whose contents the node itself made."""
    unspecified = node.unspecified
    for slot, record in node.outputs.items():
        if (
            (node.index, slot) not in readers
            and slot not in unspecified
            and not record.skip
            and 0 not in record.shape
            and not node.is_added
            and not _is_handed_on(node, slot, readers)
        ):
            yield slot


def _is_handed_on(node: Node, slot: int, readers: Mapping[Place, int]) -> bool:
    """Whether an output is an unchanged input with other readers, and other outputs of the operator are read."""
    record, maker = node.outputs[slot], node.makers.get(slot)
    return (
        maker is not None
        and readers[maker] > 1
        and any((node.index, other) in readers for other in node.outputs)
        and distance(node.inputs[slot], record) == 0
    )


def _last_writes(trace: Trace) -> Iterator[Place]:
    """The last writes to memory from before the step, and to parameters and states, which the first step may create."""
    before = storages_of(trace.finals.values())
    made: set[int] = set()
    last: dict[tuple[int, int], Place] = {}
    for node in trace.nodes:
        for record in node.inputs.values():
            if record.memory is None or record.skip:
                continue
            if record.memory.storage not in made or names_a_state(leaf_name(record)):
                before.add(record.memory.storage)
        for slot, record in node.specified_outputs.items():
            if record.memory is not None and not record.skip and 0 not in record.shape:
                made.add(record.memory.storage)
                last[record.memory.storage, record.memory.offset] = (node.index, slot)
    before -= gradients(trace)
    return (place for (storage, _), place in last.items() if storage in before)


def _fixed(trace: Trace) -> set[int]:
    """The operators whose outputs depend only on their arguments, on shapes, and on outputs of such operators."""
    found: set[int] = set()
    for node in trace.nodes:
        slots = [slot for slot, record in node.inputs.items() if not record.skip]
        may_be_fixed = bool(slots) or not is_of_graph(node)
        if _returns_shape(node) or (
            may_be_fixed
            and all(_is_as_made(trace, node, slot) and node.makers[slot][0] in found for slot in slots)
            and not draws(node)  # last, because it imports the framework
        ):
            found.add(node.index)
    return found


def _returns_shape(node: Node) -> bool:
    """Whether a node returns shapes or element counts, according to its name and outputs: it reads no element of its inputs."""
    if not _SHAPES.fullmatch(node.bare_type):
        return False
    shapes = [record.shape for record in node.inputs.values()]
    possible = [numbers for shape in shapes for numbers in (shape, (math.prod(shape),), (len(shape),))]
    return all(
        any(_holds(record, numbers) for numbers in possible)
        for record in node.outputs.values()
        if "int" in record.dtype
    )


def _holds(record: TensorRecord, numbers: Sequence[int]) -> bool:
    """Whether a tensor may contain exactly these numbers, according to its statistics."""
    ends = [record.statistics.get(name) for name in ("min", "max")]
    return math.prod(record.shape) == len(numbers) and (not numbers or ends == [min(numbers), max(numbers)])


def is_given_to_writer(trace: Trace, place: Place) -> bool:
    return place[1] < 0 and is_of_graph(trace.nodes[place[0]])


def is_of_graph(node: Node) -> bool:
    """Whether the node's framework uses handles: reading a variable or the next batch has no input, and writing a variable has no output."""
    return bool(node.op.kernel) and not is_dispatched(node.op.kernel)


def _is_as_made(trace: Trace, node: Node, slot: int) -> bool:
    """Whether an input still has the values of its maker's output: the memory may have been written in between."""
    maker = node.makers.get(slot)
    made = None if maker is None else trace.nodes[maker[0]].outputs.get(maker[1])
    read = node.inputs[slot]
    if made is None:
        return False
    if made.memory is None or read.memory is None or made.memory != read.memory or made.shape != read.shape:
        return True  # a part of it, or in another order
    if has_elements(made) and has_elements(read):
        return same_bits(made.numpy(), read.numpy())
    return same_statistics(made, read)


def computed_results(trace: Trace) -> list[Place]:
    """The results that another program with the same purpose has, too: those that depend on what the program was given, and the parameters that a compiled step
    returns. Constants, initial values and counts are none of these.
    """
    given = depend_on_data(trace)
    places = sorted({*results(trace).all(), *_returned_states(trace)})
    return [place for place in places if place[0] in given and _is_more_than_a_count(trace, place)]


def used_results(trace: Trace, beside: Trace | None) -> list[Place]:
    """The results that something may use. In training, nothing uses an output of the forward pass that is not a number and is not read in this step or the
    next: gradients in uncompiled JAX begin with such outputs. `beside` is the next step, or for the last step the one before it.
    """
    found = results(trace)
    lasting = [*found.written, *_returned_states(trace)]
    if beside is None or not trains(trace):
        return sorted({*found.given, *lasting})
    first, second = sorted((trace, beside), key=lambda each: each.step)
    given = {_digest(node.inputs[slot]) for node in second.nodes for slot in node.inputs.keys() - node.makers.keys()}
    kept = {
        _like(first, (node.index, slot))
        for node in first.nodes
        for slot, record in node.outputs.items()
        if _digest(record) in given
    }

    def is_used(place: Place) -> bool:
        is_number = place[1] < 0 or not trace.at(place).shape
        return is_number or trace.nodes[place[0]].op.phase != "forward" or _like(trace, place) in kept

    return sorted({*lasting, *filter(is_used, found.given)})


def reads_only_shapes(node: Node) -> bool:
    """Whether the outputs of an operator depend only on the shapes of its inputs. A gradient begins with such an operator: ones in the shape of the loss."""
    return node.bare_type.lower() in _ONLY_SHAPES


def trains(*traces: Trace) -> bool:
    """Whether any operator ran after the forward pass."""
    return any(node.op.phase != "forward" for trace in traces for node in trace.nodes)


def picks(node: Node) -> bool:
    """Whether an operator of the class `moves` turns floats into whole numbers, as argmax does."""
    reads_floats = any(epsilon_of(record.dtype) for record in node.inputs.values())
    return node.operator_class == "moves" and reads_floats and not node.rounding


def _returned_states(trace: Trace) -> list[Place]:
    return [(node.index, slot) for node in trace.nodes if node.op.kernel == "Parameter" for slot in node.outputs]


def depend_on_data(trace: Trace) -> set[int]:
    """The operators that compute from what the program was given. Those that only move it do not: they make constants and initial values."""
    found: set[int] = set()
    moved: set[int] = set()
    for node in trace.nodes:
        makers = {maker for maker, _ in node.makers.values()}
        is_given = any(
            slot not in node.makers and not record.skip and not node.overwrites(slot)
            for slot, record in node.inputs.items()
        )
        moves = (node.operator_class in ("moves", "casts") and not picks(node)) or not node.outputs
        if not makers.isdisjoint(found) or (not moves and (is_given or not makers.isdisjoint(moved))):
            found.add(node.index)
        elif is_given or not makers.isdisjoint(moved):
            moved.add(node.index)
    return found


def _is_more_than_a_count(trace: Trace, place: Place) -> bool:
    node, record = trace.nodes[place[0]], trace.at(place)
    return bool(record.shape or epsilon_of(record.dtype)) or node.op.repeats_operators or picks(node)


def _digest(record: TensorRecord) -> bytes:
    values = recorded(record)
    return b"" if values is None else digest_of(values)


def _like(trace: Trace, place: Place) -> tuple[str, str, int, Sequence[int]]:
    """What an output has in common with its repetitions in other steps."""
    op = trace.nodes[place[0]].op
    return op.line, op.kernel, place[1], trace.at(place).shape
