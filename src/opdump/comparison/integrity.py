"""Whether what operators read is what was written there: one run by itself, bit for bit.

A flipped bit, memory that somebody else wrote, a write that went past the framework: the input of an operator differs from what its
maker left, and no operator in between wrote it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.differences import equal_elements
from opdump.comparison.lifetimes import lifetimes
from opdump.comparison.memory import Memory, Named, extent_of, in_storage_order, view_of
from opdump.comparison.nodes import Node
from opdump.comparison.statistics_apart import same_statistics
from opdump.comparison.trace import Trace, has_elements, leaf_name
from opdump.comparison.value_index import has_statistics
from opdump.records import TensorRecord

Array = NDArray[Any]
_STEPS: Final = 8
"""So many steps back a tensor without a name is known again."""


@dataclass(frozen=True, slots=True)
class Violation:
    """An input that does not hold what was written: how many elements, of how many, and which nodes had written it (-1: none of the step)."""

    changed: int
    size: int
    writers: frozenset[int]

    def is_like(self, other: Violation) -> bool:
        """Whether as much of as much memory is changed."""
        return (self.changed, self.size) == (other.changed, other.size)


Digest = tuple[str, bytes]


def _digest(dtype: str, values: Array) -> Digest:
    return dtype, hashlib.blake2b(np.ascontiguousarray(values).tobytes(), digest_size=16).digest()


@dataclass(slots=True)
class Integrity:
    """`violations` by node and slot. `state` is what named tensors (parameters, buffers, states of optimizers) held at the end."""

    violations: dict[tuple[int, int], Violation] = field(default_factory=dict)
    inherited: set[tuple[int, int]] = field(default_factory=set)
    """Inputs that no operator of the step wrote, and that hold what the step before left in them."""
    state: dict[str, Named] = field(default_factory=dict)
    left: dict[Digest, frozenset[int]] = field(default_factory=dict)
    """What the storages held at the end, and who wrote it: tensors without a name go from step to step as well."""
    came_from: dict[tuple[int, int], frozenset[int]] = field(default_factory=dict)
    """Inputs that nobody in the step wrote and that a storage held at the end of the step before: who wrote it there."""
    left_earlier: dict[Digest, int] = field(default_factory=dict)
    """What the storages held at the end of steps before that, and how many steps ago: two optimizers may step in turn."""
    came_earlier: dict[tuple[int, int], int] = field(default_factory=dict)
    """Inputs that hold that, and how many steps ago it was left."""

    @property
    def found_again(self) -> set[tuple[int, int]]:
        """Inputs that nobody in the step wrote and that a step before left."""
        return {*self.inherited, *self.came_from, *self.came_earlier}


def were_left_alike(
    a: Integrity, at_a: tuple[int, int], b: Integrity, at_b: tuple[int, int], b_of_before: Mapping[int, int]
) -> bool:
    """Whether an input of each run is what the same operators of the step before left, or both are what as old a step left.

    `b_of_before` has the operators of B in the step before by those of A.
    """
    if at_a in a.came_earlier or at_b in b.came_earlier:
        return a.came_earlier.get(at_a) == b.came_earlier.get(at_b)
    left_a, left_b = a.came_from.get(at_a), b.came_from.get(at_b)
    if left_a is None or left_b is None:
        return False
    expected = {b_of_before[index] for index in left_a if index in b_of_before}
    return not expected or bool(expected & left_b) or left_b.isdisjoint(b_of_before.values())


def check_integrity(trace: Trace, before: Integrity | None) -> Integrity:
    """Follows the memory of a step. `before` is the step before."""
    known: Mapping[str, Named] = {} if before is None else before.state
    left_before = {} if before is None else before.left
    left_earlier = {} if before is None else before.left_earlier
    memory = Memory(wide=False)
    found = Integrity(state=dict(known))
    named: dict[str, tuple[Node, int]] = {}
    changed: dict[int, frozenset[int]] = {}
    """By storage: which nodes had written what something else then changed. It may change it again."""
    first_read: dict[int, tuple[int, int]] = {}
    """Which input read a storage first that no operator of the step wrote."""
    ends = lifetimes(trace, {record.memory.storage for record in _named(trace) if record.memory is not None})
    for node in trace.nodes:
        for slot, record in node.inputs.items():
            if not has_elements(record) or record.skip:
                continue
            values = record.numpy()
            read = memory.read(node, slot)
            name = leaf_name(record)
            if name and name not in named:
                named[name] = (node, slot)
            if read.values is None or read.unknown is not None:
                left = known[name].seen_as(record) if read.values is None and name in known else None
                unequal = None if left is None else int(np.count_nonzero(~equal_elements(left, values)))
                if unequal == 0:
                    found.inherited.add((node.index, slot))
                elif unequal and name.removeprefix("Parameter.") in trace.finals:
                    found.violations[node.index, slot] = Violation(unequal, values.size, frozenset())
                elif read.values is None and left_before:
                    # Other names are those of data, which the program may fill anew, or of the place that reads it.
                    flat = in_storage_order(values, record)
                    digest = None if flat is None else _digest(record.dtype, flat)
                    if digest in left_before:
                        found.came_from[node.index, slot] = left_before[digest]
                    elif digest in left_earlier:
                        found.came_earlier[node.index, slot] = left_earlier[digest]
                if record.memory is not None:
                    memory.write(-1, slot, record, values)
                    first_read.setdefault(record.memory.storage, (node.index, slot))
                continue
            unequal = 0 if record.memory is None else int(np.count_nonzero(~equal_elements(read.values, values)))
            if not unequal and not read.writers - {-1} and record.memory is not None:
                # Read again, and still what it was: it comes from where it came from then.
                before_it = first_read.get(record.memory.storage)
                if before_it in found.inherited:
                    found.inherited.add((node.index, slot))
                if before_it in found.came_from:
                    found.came_from[node.index, slot] = found.came_from[before_it]
                if before_it in found.came_earlier:
                    found.came_earlier[node.index, slot] = found.came_earlier[before_it]
            if unequal:
                storage = None if record.memory is None else record.memory.storage
                writers = read.writers if read.writers - {-1} or storage is None else changed.get(storage)
                if writers is not None and writers - {-1}:
                    found.violations[node.index, slot] = Violation(unequal, values.size, writers)
                    if storage is not None:
                        changed[storage] = writers
                if record.memory is not None:
                    memory.write(-1, slot, record, values)
        for slot, record in node.outputs.items():
            if has_elements(record):
                memory.write(node.index, slot, record, record.numpy())
        found.left |= _digests(memory.contents(ends.storages.get(node.index, ())))
        memory.release(ends, node.index)
    found.left_earlier = {digest: ago + 1 for digest, ago in left_earlier.items() if ago < _STEPS} | dict.fromkeys(
        left_before, 2
    )
    for record in trace.finals.values():
        if has_elements(record):
            memory.write(-1, -1, record, record.numpy())
    for name, (node, slot) in named.items():
        record = node.inputs[slot]
        held = memory.named(record)
        if held is not None:
            found.state[name] = held
        elif record.memory is None and has_elements(record):
            found.state[name] = Named(record.dtype, record.numpy(), None)
    for name, record in trace.finals.items():
        held = memory.named(record)
        if held is not None:
            found.state[f"Parameter.{name}"] = held
        elif has_elements(record):
            found.state[f"Parameter.{name}"] = Named(record.dtype, record.numpy(), None)
    found.left |= _digests(memory.contents())
    return found


def was_changed(made: TensorRecord, read: TensorRecord) -> bool:
    """Whether an input is not what its maker left there, though the framework counted no write since; by their elements, or by their statistics
    where it is all of the output. False where that cannot be told.
    """
    before, after = made.memory, read.memory
    if before is None or after is None or made.dtype != read.dtype:
        return False
    if (before.storage, before.version) != (after.storage, after.version):
        return False
    if has_elements(made) and has_elements(read):
        flat = in_storage_order(made.numpy(), made)
        if flat is None or after.offset < before.offset or extent_of(read) > before.offset + len(flat):
            return False
        held = view_of(flat, replace(read, memory=replace(after, offset=after.offset - before.offset)))
        return not equal_elements(held, read.numpy()).all()
    is_all = before == after and math.prod(made.shape) == math.prod(read.shape)
    return is_all and has_statistics(made) and has_statistics(read) and not same_statistics(made, read)


def _digests(contents: Iterable[tuple[str, Array, frozenset[int]]]) -> dict[Digest, frozenset[int]]:
    return {_digest(dtype, values): writers for dtype, values, writers in contents}


def _named(trace: Trace) -> Iterator[TensorRecord]:
    """Inputs with a name, which the next step may find as this one left them."""
    for node in trace.nodes:
        yield from (record for record in node.inputs.values() if leaf_name(record))


def holds_elements(records: Mapping[int, TensorRecord]) -> bool:
    """Whether any of the tensors has its elements in the dump."""
    return any(has_elements(record) for record in records.values())
