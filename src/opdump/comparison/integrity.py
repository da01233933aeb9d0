"""Whether what operators read is what was written there: one run by itself, bit for bit.

A flipped bit, memory that somebody else wrote, a write that went past the framework: the input of an operator differs from what its
maker left, and no operator in between wrote it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.alignment import Alignment
from opdump.comparison.differences import (
    Difference,
    difference,
    epsilon_of,
    equal_elements,
    is_permutation,
    same_bits,
    same_statistics,
    unshaped_difference,
)
from opdump.comparison.execution import draws, recorded
from opdump.comparison.kernel_accuracy import in_roundings
from opdump.comparison.memory import Memory, Named, extent_of, in_storage_order, view_of
from opdump.comparison.nodes import Kind, Node, Suspect
from opdump.comparison.step_statistics import has_statistics
from opdump.comparison.trace import Trace, has_elements, leaf_name, lifetimes, names_a_state
from opdump.graph import shown_source
from opdump.op_types.unspecified import unspecified_outputs
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


# What is said of two values that differ.


def changed(violation: Violation, record: TensorRecord, trace: Trace) -> str:
    """How much of an input is not what was written there."""
    maker = maker_of(violation, record, trace)
    return f"{violation.changed:,} of {violation.size:,} elements are not what {maker} left there, and no operator wrote them"


def maker_of(violation: Violation, record: TensorRecord, trace: Trace) -> str:
    """What had written an input that was changed since: the name of the last operator of the step, or whose output it was before."""
    makers = sorted(violation.writers - {-1})
    return trace.nodes[makers[-1]].op.op_name if makers else record.source or "the step before"


def amount_apart(one: Array, other: Array) -> str:
    """How many elements differ, of how many: `1 of 8 elements`. Empty of other shapes."""
    if one.shape != other.shape:
        return ""
    with np.errstate(all="ignore"):
        return f"{int((~equal_elements(one, other)).sum()):,} of {one.size:,} elements"


def apart(one: Array, other: Array) -> str:
    """How many elements differ, and the first of them."""
    if one.shape != other.shape:
        return f"shape {one.shape} in A, {other.shape} in B"
    with np.errstate(all="ignore"):
        unequal = ~equal_elements(one, other)
    first = int(np.flatnonzero(unequal.reshape(-1))[0])
    return (
        f"{int(unequal.sum()):,} of {one.size:,} elements, the first at {first} "
        f"({one.reshape(-1)[first]:g} in A, {other.reshape(-1)[first]:g} in B)"
    )


# Data that both programs read, with other elements in one of them: memory that no operator wrote, or that something else changed since.
#
# Data is found by what it holds, whatever reads it. It counts where something differs for it in the end: memory that was never written holds
# what was there before, and a mask may leave it out.

_ALIKE: Final = 0.5
"""At least this share of the elements is the same to the bit."""
_ROUNDINGS: Final = 64.0
"""What is less apart than so many units of the largest element's rounding is rounded."""
_SHOWS: Final = 8.0
"""What follows from other data is further apart than so many units of rounding."""


@dataclass(frozen=True, slots=True)
class Read:
    """What no operator made, where a program reads it first."""

    node: Node
    slot: int
    values: Array


def changed_data(
    a: Trace, b: Trace, read_a: Collection[tuple[int, int]], read_b: Collection[tuple[int, int]]
) -> Iterator[tuple[Read, Read]]:
    """Pairs of inputs of A and of B, by node and slot, that are the same but for some elements, and that the other program has nowhere as
    they are. What is apart by rounding is the same. Parameters are no data.
    """
    first, second = _data(a, read_a), _data(b, read_b)
    only_a = [one for one in first if not any(same_bits(one.values, other.values) for other in second)]
    only_b = [other for other in second if not any(same_bits(one.values, other.values) for one in first)]
    for other in only_b:
        alike = [(_share(one.values, other.values), one) for one in only_a]
        share, one = max(alike, key=lambda pair: pair[0], default=(0.0, None))
        if one is not None and share >= _ALIKE and _is_changed(one, other):
            yield one, other


def data_suspects(
    a: Trace, b: Trace, read_a: Collection[tuple[int, int]], read_b: Collection[tuple[int, int]]
) -> Iterator[Suspect]:
    """The same pairs, each where it is read first."""
    for one, other in changed_data(a, b, read_a, read_b):
        what = f"data differ: {apart(one.values, other.values)}; an input of the program, where it is read first"
        amount = amount_apart(one.values, other.values)
        yield Suspect("data", one.node, other.node, "input", other.slot, math.inf, what, amount)


def data_suspect(
    one: Node, other: Node, slot: int, values: tuple[Array, Array], found: Difference, written_by: str = ""
) -> Suspect:
    """What is said where both programs read data that differ by `found`; `written_by` is the operator whose output was changed there since."""
    record = other.inputs[slot]
    kind: Kind = "parameter" if names_a_state(leaf_name(record)) else "data"
    what = f"data differ: {apart(*values)}; {changed_since(written_by) if written_by else f'{shown_data(record)}, where it is read first'}"
    score, amount = in_roundings(found, record), amount_apart(*values)
    return Suspect(kind, one, other, "input", slot, score, what, amount)


def changed_since(maker: str) -> str:
    """What is said of memory that something else wrote after an operator."""
    return f"what {maker} left there was changed since by something other than an operator"


def shown_data(record: TensorRecord) -> str:
    """What an input that no operator made is called: `data-0`, `inputs0, an input of the network`."""
    name = leaf_name(record)
    if name and not names_a_state(name) and name.startswith("Parameter."):
        return f"{name.removeprefix('Parameter.')}, an input of the network"
    return shown_source(name) or "an input of the program"


def shows(a: Trace, b: Trace, alignment: Alignment, other: Node) -> bool:
    """Whether what a node of B gives leads to a result that differs: to an output that no operator reads, a number that the program reads, or
    an operator that only B has. Where what follows is the same in both runs, what was read differently does not matter.
    """
    users = b.users()
    waiting, seen = [other.index], {other.index}
    while waiting:
        node = b.nodes[waiting.pop()]
        partner = alignment.a_of.get(node.index)
        if partner is None or not node.outputs:
            return True
        for slot, record in node.outputs.items():
            if slot in unspecified_outputs(node.op.kernel or node.op.op_type):
                continue
            before = a.nodes[partner].outputs.get(slot)
            first, second = None if before is None else recorded(before), recorded(record)
            if first is not None and second is not None:
                found = unshaped_difference(first, second)
                if found.relative <= _SHOWS * epsilon_of(record.dtype):
                    continue
            readers = [index for index, _ in users.get((node.index, slot), ())]
            if not readers:
                return True
            waiting += [index for index in readers if index not in seen]
            seen.update(readers)
    return False


def _data(trace: Trace, reads: Collection[tuple[int, int]]) -> list[Read]:
    found: list[Read] = []
    for index, slot in sorted(reads):
        node = trace.nodes[index]
        record = node.inputs[slot]
        if not has_elements(record) or _is_written(node, record) or names_a_state(leaf_name(record)):
            continue
        values = record.numpy().reshape(-1)
        if values.size > 1 and not any(same_bits(values, known.values) for known in found):
            found.append(Read(node, slot, values))
    return found


def _is_written(node: Node, record: TensorRecord) -> bool:
    """Whether an operator writes into what it reads: a gradient that adds up, an average."""
    written = {output.memory.storage for output in node.outputs.values() if output.memory is not None}
    return record.memory is not None and record.memory.storage in written


def _is_changed(one: Read, other: Read) -> bool:
    """Whether elements are others, and not rounded or in another order."""
    if is_permutation(one.values, other.values):
        return False
    least = _ROUNDINGS * epsilon_of(other.node.inputs[other.slot].dtype)
    return not least or difference(one.values, other.values).peak > least


def _share(one: Array, other: Array) -> float:
    """The share of elements that are the same; 0 for other types and sizes."""
    if one.dtype != other.dtype or one.size != other.size:
        return 0.0
    return float(np.mean(equal_elements(one, other)))


# Random numbers that were drawn into memory, as parameters are at first: whether the runs drew the same, and whether anybody reads them.
#
# Who reads a parameter names the parameter, and not who drew it, so it is found by the memory. What is written over before anybody reads it means nothing.

OTHER_NUMBERS: Final = 0.05
"""Relative: another draw differs by much more than rounding does."""


def initial_draws(a: Trace, b: Trace, alignment: Alignment) -> Iterator[Suspect]:
    """The draws of B that gave other numbers than in A, and that somebody reads."""
    for there, here in sorted(alignment.a_of.items()):
        one, other = a.nodes[here], b.nodes[there]
        if other.op.phase != "forward" or not draws(other) or one.written_arguments != other.written_arguments:
            continue
        for slot, record in other.outputs.items():
            first, second = recorded(one.outputs[slot]) if slot in one.outputs else None, recorded(record)
            if record.memory is None or first is None or second is None or first.shape != second.shape:
                continue
            if difference(first, second).relative > OTHER_NUMBERS and is_read(b, other, slot):
                yield drawn_otherwise(one, other, slot)


def drawn_otherwise(one: Node, other: Node, slot: int) -> Suspect:
    """What speaks against a draw that gave other numbers."""
    what = "the same draw gave different random numbers: a different seed, or a different number of draws before it"
    return Suspect("random", one, other, "output", slot, math.inf, what)


def is_read(trace: Trace, drawn: Node, slot: int) -> bool:
    """Whether an operator that does not write over it reads an output, or what others made of it in place; true where its place is unknown."""
    record = drawn.outputs[slot]
    values = recorded(record)
    if record.memory is None or values is None:
        return True
    storage = record.memory.storage
    held = Memory(wide=False)
    held.write(drawn.index, slot, record, values)
    carriers = {drawn.index}
    for node in trace.nodes[drawn.index + 1 :]:
        written = {place: each for place, each in node.outputs.items() if _lies_in(each, storage)}
        reads = any(
            not each.skip
            and _lies_in(each, storage)
            and not node.overwrites(place)
            and held.read(node, place).writers & carriers
            for place, each in node.inputs.items()
        )
        if reads and not written:
            return True
        if reads:
            carriers.add(node.index)
        for place, each in written.items():
            given = recorded(each)
            if given is None:
                return reads
            held.write(node.index, place, each, given)
    return False


def _lies_in(record: TensorRecord, storage: int) -> bool:
    return record.memory is not None and record.memory.storage == storage
