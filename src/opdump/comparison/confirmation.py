"""Whether the differences of two programs matter in the end.

Two programs may part and meet again: a factor that is applied before a product in one and after it in the other. So before operators are
accused, both programs are run through the step from the same values, all in float64, and what remains of it is compared: the parameters
and states, and what nobody reads any more (the loss, the output of the network).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from numpy.typing import NDArray

from opdump.comparison.alignment import Alignment
from opdump.comparison.causes import fingerprint
from opdump.comparison.differences import epsilon_of, is_permutation, unshaped_difference
from opdump.comparison.execution import Execution, recorded, replay
from opdump.comparison.trace import Node, Trace, leaf_name
from opdump.records import TensorRecord

Array = NDArray[Any]

_SAME: Final = 2e-7
"""Relative: far above what float64 leaves; constants that were rounded to float32 come to that much."""


def comes_to_the_same(a: Trace, b: Trace, alignment: Alignment) -> bool:
    """Whether both programs leave the same, from the same values; False too where that cannot be found out."""
    first = Execution(a)
    leaves: dict[tuple[int, int], Array] = {}
    for node in a.nodes:
        values = {}
        for slot, record in node.inputs.items():
            if record.skip:
                continue
            value = first.look_up(node, slot, recorded(record))
            if value is None:
                return False
            values[slot] = value
            if (node.index, slot) in first.leaf_reads:
                leaves[node.index, slot] = value
        first.inputs[node.index] = values
        _run(first, node, values)
    second = Execution(b)
    a_of = {there: here for here, there in alignment.storages.items()}
    for node in b.nodes:
        values = {}
        partner = alignment.a_of.get(node.index)
        for slot, record in node.inputs.items():
            if record.skip:
                continue
            value = second.look_up(node, slot, _leaf(first, leaves, a_of, partner, node, slot))
            if value is None:
                return False
            values[slot] = value
        second.inputs[node.index] = values
        _run(second, node, values)
    return _same_ends(first, second, alignment)


def _leaf(
    first: Execution,
    leaves: dict[tuple[int, int], Array],
    a_of: Mapping[int, int],
    partner: int | None,
    node: Node,
    slot: int,
) -> Array | None:
    own = recorded(node.inputs[slot])
    record = node.inputs[slot]
    storage = None if record.memory is None else a_of.get(record.memory.storage)
    if storage is not None and storage in first.leaf_storages:
        value = first.leaf_storages[storage].seen_as(record)
        if value is not None and (own is None or not is_permutation(value, own)):
            return value
    name = leaf_name(record)
    known = first.leaves.get(name) if name else None
    value = None if known is None else known.seen_as(record)
    if value is not None:
        return value
    value = None if partner is None else leaves.get((partner, slot))
    if value is None or own is None or value.shape != own.shape or is_permutation(value, own):
        return own
    return value


def _run(run: Execution, node: Node, values: dict[int, Array]) -> None:
    """Runs a node; what cannot be run again gives what it gave: random numbers, operators of others."""
    done = replay(node, values)
    if done is None:
        own = {slot: recorded(record) for slot, record in node.outputs.items()}
        outputs = {slot: value for slot, value in own.items() if value is not None}
    else:
        outputs = dict(done.outputs)
    run.outputs[node.index] = outputs
    run.write(node, outputs)


def _same_ends(first: Execution, second: Execution, alignment: Alignment) -> bool:
    compared = 0
    for one, other in _remaining(first, second, alignment):
        if one is None or other is None:
            return False
        compared += 1
        if unshaped_difference(one, other).relative > _SAME and fingerprint(one) != fingerprint(other):
            return False
    return compared > 0


def _remaining(
    first: Execution, second: Execution, alignment: Alignment
) -> Iterator[tuple[Array | None, Array | None]]:
    # By memory, since names may be others; by name where the memory is not known to be the same.
    for name, record in first.trace.finals.items():
        other = _final_of(second, name, record, alignment)
        if other is None or record.memory is None or other.memory is None:
            continue
        # One that is a part of another's (q, k and v in one) has no counterpart; of single numbers it is not known which is which.
        if math.prod(record.shape) == math.prod(other.shape) > 1:
            yield _at_end(first, record), _at_end(second, other)
    for held in first.leaves.values():
        if held.place is None or held.place.memory is None or not epsilon_of(held.dtype):
            continue
        storage = alignment.storages.get(held.place.memory.storage)
        one = first.memory.written(held.place.memory.storage)
        two = None if storage is None else second.memory.written(storage)
        if one is not None and two is not None and len(one) == len(two):
            yield one, two
    for node in first.trace.nodes:
        there = alignment.b_of.get(node.index)
        if node.op.phase == "optimizer" and there is not None:
            # States of an optimizer that have no name yet: what it wrote in place.
            yield from _written_in_place(first, second, node, second.trace.nodes[there])
    numbers, others = list(_numbers(first)), list(_numbers(second))
    if len(numbers) == len(others):
        yield from zip(numbers, others, strict=True)
    if not first.trace.finals:
        yield from _last_outputs(first, second, alignment)


def _numbers(run: Execution) -> Iterator[Array]:
    """Losses: what a gradient begins with, and what the program reads as a number."""
    for node in run.trace.nodes:
        if node.bare_type in ("ones_like", "_local_scalar_dense"):
            for slot in node.inputs:
                value = run.inputs.get(node.index, {}).get(slot)
                is_made = (node.index, slot) in run.writers
                if is_made and value is not None and value.ndim == 0 and value.dtype.kind == "f":
                    yield value


def _last_outputs(first: Execution, second: Execution, alignment: Alignment) -> Iterator[tuple[Array, Array | None]]:
    """Where nothing is trained: what nobody reads any more."""
    for node in _ends(first.trace):
        there = alignment.b_of.get(node.index)
        for slot, value in first.outputs[node.index].items():
            if there is not None:
                yield value, second.outputs[there].get(slot)
            else:
                print_of = fingerprint(value)
                same = (given for each in _ends(second.trace) for given in second.outputs[each.index].values())
                yield value, next((given for given in same if fingerprint(given) == print_of), None)


def _final_of(second: Execution, name: str, record: TensorRecord, alignment: Alignment) -> TensorRecord | None:
    storage = None if record.memory is None else alignment.storages.get(record.memory.storage)
    for other in second.trace.finals.values():
        if storage is not None and other.memory is not None and other.memory.storage == storage:
            return other
    return second.trace.finals.get(name) if storage is None else None


def _written_in_place(first: Execution, second: Execution, one: Node, other: Node) -> Iterator[tuple[Array, Array]]:
    read = {record.memory.storage for record in one.inputs.values() if record.memory is not None}
    for slot, record in one.outputs.items():
        after = other.outputs.get(slot)
        if record.memory is None or record.memory.storage not in read or after is None:
            continue
        held, held_after = first.memory.named(record), second.memory.named(after)
        if held is not None and held_after is not None:
            yield held.values, held_after.values


def _at_end(run: Execution, record: TensorRecord) -> Array | None:
    return run.memory.read(Node(len(run.trace.nodes), record.op, {0: record}, {}), 0).values


def _ends(trace: Trace) -> Iterator[Node]:
    """Operators of the forward pass whose outputs nobody reads."""
    read = {maker for node in trace.nodes for maker in node.makers.values()}
    for node in trace.nodes:
        if node.op.phase == "forward" and node.outputs and not any((node.index, slot) in read for slot in node.outputs):
            yield node
