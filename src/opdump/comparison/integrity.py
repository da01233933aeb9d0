"""Checks in each run that every input contains, bit for bit, what was last written to its memory.

If it does not, something other than an operator changed it: a flipped bit, a stray write, a write that bypassed the framework.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from opdump.comparison.accuracy import DATA, DIVERGENCE, RESULT
from opdump.comparison.alignment import Alignment
from opdump.comparison.differences import (
    Array,
    Difference,
    difference,
    digest_of,
    epsilon_of,
    equal_elements,
    has_elements,
    in_roundings,
    in_storage_order,
    is_permutation,
    same_bits,
    unshaped_difference,
)
from opdump.comparison.execution import draws, outputs_of_both, recorded
from opdump.comparison.memory import Memory, Named
from opdump.comparison.nodes import Kind, Node, Place, Suspect, is_compiled_by_mindspore, storages_of
from opdump.comparison.trace import Lifetimes, Trace, leaf_name, lifetimes, names_a_state
from opdump.graph import CONSTANT_PREFIX, shown_source
from opdump.records import TensorRecord

_STEPS: Final = 8
"""Tensors without a name are recognized for this many steps."""


@dataclass(frozen=True, slots=True)
class Violation:
    """An input that does not contain what was written: the number of changed elements, the size, and the nodes that wrote it (-1: an
    earlier step).
    """

    changed: int
    size: int
    writers: frozenset[int]

    def is_like(self, other: Violation) -> bool:
        """Whether both have the same size and the same number of changed elements."""
        return (self.changed, self.size) == (other.changed, other.size)


Digest = tuple[str, bytes]


@dataclass(slots=True)
class Integrity:
    """`violations` by node and slot. `state` has the named tensors (parameters, buffers, optimizer states) at the end of the step."""

    violations: dict[Place, Violation] = field(default_factory=dict)
    inherited: set[Place] = field(default_factory=set)
    """Named inputs that no operator of the step wrote, and that are unchanged since the previous step."""
    state: dict[str, Named] = field(default_factory=dict)
    left: dict[Digest, frozenset[int]] = field(default_factory=dict)
    """The final contents of storages, and the nodes that wrote them. They identify unnamed tensors in the next step."""
    came_from: dict[Place, frozenset[int]] = field(default_factory=dict)
    """For inputs not written in this step whose contents the previous step left in a storage: the nodes of that step that wrote them."""
    left_earlier: dict[Digest, int] = field(default_factory=dict)
    """The final contents of storages in steps before the previous one, and how many steps ago: two optimizers may alternate."""
    came_earlier: dict[Place, int] = field(default_factory=dict)
    """Inputs with such contents, and how many steps ago they were left."""

    def copy_origin(self, first: Place, place: Place) -> None:
        """Note that an input was read again and unchanged, so that it has the same origin as at the first read."""
        if first in self.inherited:
            self.inherited.add(place)
        if first in self.came_from:
            self.came_from[place] = self.came_from[first]
        if first in self.came_earlier:
            self.came_earlier[place] = self.came_earlier[first]

    @property
    def found_again(self) -> set[Place]:
        """Inputs that no operator of the step wrote, and whose contents an earlier step left."""
        return {*self.inherited, *self.came_from, *self.came_earlier}


def were_left_alike(a: Integrity, at_a: Place, b: Integrity, at_b: Place, b_of_before: Mapping[int, int]) -> bool:
    """Whether the contents of two inputs were left by matched operators of the previous step, or by equally old steps.

    `b_of_before` has the operators of B in the previous step by those of A. Operators without a match are no evidence against it.
    """
    if at_a in a.came_earlier or at_b in b.came_earlier:
        return a.came_earlier.get(at_a) == b.came_earlier.get(at_b)
    left_a, left_b = a.came_from.get(at_a), b.came_from.get(at_b)
    if left_a is None or left_b is None:
        return False
    expected = {b_of_before[index] for index in left_a if index in b_of_before}
    return not expected or bool(expected & left_b) or left_b.isdisjoint(b_of_before.values())


def check_integrity(trace: Trace, before: Integrity | None) -> Integrity:
    """Follow the memory of a step. `before` is the result of the previous step."""
    check = _MemoryCheck(trace, Integrity() if before is None else before)
    named = (record for node in trace.nodes for record in node.inputs.values() if leaf_name(record))
    ends = lifetimes(trace, storages_of(named))  # named inputs may keep their contents until the next step
    read = {maker for node in trace.nodes for maker in node.makers.values()}
    for node in trace.nodes:
        for slot, record in node.inputs.items():
            if has_elements(record) and not record.skip:
                check.read(node, slot, record)
        for slot, record in node.outputs.items():
            check.write(node.index, slot, record)
            if record.memory is None and (node.op.phase == "optimizer" or (node.index, slot) not in read):
                check.leave(node.index, record)
        check.release(node.index, ends)
    check.end()
    return check.found


class _MemoryCheck:
    """The memory of a step up to some operator, and the findings about the inputs so far."""

    def __init__(self, trace: Trace, before: Integrity) -> None:
        self.found = Integrity(state=dict(before.state))
        self._trace, self._before = trace, before
        self._calls = {node.op.op_name for node in trace.nodes if node.op.repeats_operators}
        self._memory = Memory(wide=False)
        self._named: dict[str, TensorRecord] = {}
        """Named inputs, at their first read."""
        self._changed: dict[int, frozenset[int]] = {}
        """By storage, the nodes whose output was changed by something else, which may change it again."""
        self._first_read: dict[int, Place] = {}
        """By storage that no operator of the step wrote, the input that read it first."""

    def read(self, node: Node, slot: int, record: TensorRecord) -> None:
        """Compare an input with what the memory contains."""
        values, place = record.numpy(), (node.index, slot)
        read = self._memory.read(node, slot)
        if leaf_name(record):
            self._named.setdefault(leaf_name(record), record)
        if read.values is None or read.unknown is not None:
            self._find_in_previous_step(place, record, values, is_unknown=read.values is None)
            if record.memory is not None:
                self._memory.write(-1, slot, record, values)
                self._first_read.setdefault(record.memory.storage, place)
        elif record.memory is not None:
            storage = record.memory.storage
            unequal = int(np.count_nonzero(~equal_elements(read.values, values)))
            if unequal and self._is_rounded_by_call(node, slot, read.values, values):
                return
            is_made = bool(read.writers - {-1})
            if unequal:
                writers = read.writers if is_made else self._changed.get(storage)
                if writers is not None:
                    self.found.violations[place] = Violation(unequal, values.size, writers)
                    self._changed[storage] = writers
                self._memory.write(-1, slot, record, values)
            elif not is_made and storage in self._first_read:
                self.found.copy_origin(self._first_read[storage], place)

    def _is_rounded_by_call(self, node: Node, slot: int, written: Array, values: Array) -> bool:
        """Whether the source of the input is a call that contains the input's maker and returned what the maker wrote with another rounding."""
        maker, called = node.makers.get(slot), node.inputs[slot].source.rpartition(":")[0]
        if maker is None or called not in self._calls or self._trace.nodes[maker[0]].op.op_name == called:
            return False
        off = difference(written, values)
        return off.relative <= RESULT.of(epsilon_of(node.inputs[slot].dtype))

    def _find_in_previous_step(self, place: Place, record: TensorRecord, values: Array, *, is_unknown: bool) -> None:
        """Find an input that no operator of this step wrote, by its name or by its contents. It may be known in part."""
        name = leaf_name(record)
        held = self._before.state.get(name) if is_unknown else None
        left = None if held is None else held.seen_as(record)
        unequal = None if left is None else int(np.count_nonzero(~equal_elements(left, values)))
        if unequal == 0:
            self.found.inherited.add(place)
        elif unequal and name.removeprefix("Parameter.") in self._trace.finals:
            self.found.violations[place] = Violation(unequal, values.size, frozenset())
        elif is_unknown and self._before.left:
            # Other names belong to data, which the program may refill, or to the place that reads it.
            flat = values.reshape(-1) if record.memory is None else in_storage_order(values, record)
            digest = None if flat is None else (record.dtype, digest_of(flat))
            if digest in self._before.left:
                self.found.came_from[place] = self._before.left[digest]
            elif digest in self._before.left_earlier:
                self.found.came_earlier[place] = self._before.left_earlier[digest]

    def write(self, index: int, slot: int, record: TensorRecord) -> None:
        if has_elements(record):
            self._memory.write(index, slot, record, record.numpy())

    def leave(self, index: int, record: TensorRecord) -> None:
        """Note a value that the step may leave to the next one, if its memory is not known."""
        if has_elements(record):
            self.found.left[record.dtype, digest_of(record.numpy().reshape(-1))] = frozenset({index})

    def release(self, index: int, ends: Lifetimes) -> None:
        """Note the final contents of the storages that no operator after this one uses, and drop them."""
        self.found.left |= _digests(self._memory.contents(ends.storages.get(index, ())))
        self._memory.release(ends, index)

    def end(self) -> None:
        """Note what the step leaves."""
        ages = {digest: ago + 1 for digest, ago in self._before.left_earlier.items() if ago < _STEPS}
        self.found.left_earlier = ages | dict.fromkeys(self._before.left, 2)
        parameters = {f"Parameter.{name}": record for name, record in self._trace.finals.items()}
        for record in parameters.values():
            self.write(-1, -1, record)
        for name, record in (*self._named.items(), *parameters.items()):
            held = self._memory.named(record)
            if held is not None:
                self.found.state[name] = held
            elif record.memory is None and has_elements(record):
                self.found.state[name] = Named(record.dtype, record.numpy(), None)
        self.found.left |= _digests(self._memory.contents())


def _digests(contents: Iterable[tuple[str, Array, frozenset[int]]]) -> dict[Digest, frozenset[int]]:
    return {(dtype, digest_of(values)): writers for dtype, values, writers in contents}


def holds_elements(records: Mapping[int, TensorRecord]) -> bool:
    """Whether the dump has the elements of any of the tensors."""
    return any(has_elements(record) for record in records.values())


# Messages about values that differ.


def changed(violation: Violation, record: TensorRecord, trace: Trace) -> str:
    """Describe how much of an input was changed."""
    maker = maker_of(violation, record, trace)
    return f"{violation.changed:,} of {violation.size:,} elements differ from the output of {maker}, and no operator has written to this memory since"


def maker_of(violation: Violation, record: TensorRecord, trace: Trace) -> str:
    """The maker of a changed input: the name of the last operator of the step that wrote it, otherwise its source."""
    makers = sorted(violation.writers - {-1})
    return trace.nodes[makers[-1]].op.op_name if makers else record.source or "the previous step"


def amount_apart(one: Array, other: Array) -> str:
    """The number of elements that differ: `1 of 8 elements`. Empty if the shapes differ."""
    if one.shape != other.shape:
        return ""
    with np.errstate(all="ignore"):
        return f"{int((~equal_elements(one, other)).sum()):,} of {one.size:,} elements"


def apart(one: Array, other: Array) -> str:
    """The number of elements that differ, and the first of them with both values."""
    if one.shape != other.shape:
        return f"shape {one.shape} in A, {other.shape} in B"
    with np.errstate(all="ignore"):
        unequal = ~equal_elements(one, other)
    first = int(np.flatnonzero(unequal.reshape(-1))[0])
    return (
        f"{int(unequal.sum()):,} of {one.size:,} elements, the first at {first} "
        f"({one.reshape(-1)[first]:g} in A, {other.reshape(-1)[first]:g} in B)"
    )


# Finds data that both programs read and that differ in some elements: memory that no operator wrote, or that something else changed. Data are
# matched by content. They count only if they affect a result, because uninitialized memory has arbitrary contents, which a mask may exclude.

_ALIKE: Final = 0.5
"""At least this share of the elements must be equal."""


@dataclass(frozen=True, slots=True)
class Read:
    """Data that no operator made, at the first read."""

    node: Node
    slot: int
    values: Array


def changed_data(
    a: Trace, b: Trace, read_a: Collection[Place], read_b: Collection[Place]
) -> Iterator[tuple[Read, Read]]:
    """Yield pairs of data of A and B that differ in some elements by more than rounding. Data that the other program reads unchanged, and
    parameters, are left out. `read_a` and `read_b` are the inputs, by node and slot.
    """
    first, second = _data(a, read_a), _data(b, read_b)
    only_a = [one for one in first if not any(same_bits(one.values, other.values) for other in second)]
    only_b = [other for other in second if not any(same_bits(one.values, other.values) for one in first)]
    for other in only_b:
        alike = [(_share(one.values, other.values), one) for one in only_a]
        share, one = max(alike, key=lambda pair: pair[0], default=(0.0, None))
        if one is not None and share >= _ALIKE and _is_changed(one, other):
            yield one, other


def data_suspects(a: Trace, b: Trace, read_a: Collection[Place], read_b: Collection[Place]) -> Iterator[Suspect]:
    """Yield the pairs of `changed_data` as suspects, at their first read."""
    for one, other in changed_data(a, b, read_a, read_b):
        what = f"data differ: {apart(one.values, other.values)}; an input of the program, first read here"
        amount = amount_apart(one.values, other.values)
        yield Suspect("data", one.node, other.node, "input", other.slot, math.inf, what, amount)


def data_suspect(
    one: Node, other: Node, slot: int, values: tuple[Array, Array], found: Difference, written_by: str = ""
) -> Suspect:
    """Describe data that differ by `found` between the runs. `written_by` is the operator whose output was overwritten; empty if there is none."""
    record = other.inputs[slot]
    kind: Kind = "parameter" if names_a_state(leaf_name(record)) else "data"
    what = f"data differ: {apart(*values)}; {changed_since(written_by) if written_by else f'{shown_data(record)}, first read here'}"
    # In MindSpore's compiled code, a constant is part of the program, like a number.
    if is_compiled_by_mindspore(other) and record.source.startswith(CONSTANT_PREFIX):
        kind, what = "argument", f"a constant of the compiled code differs: {apart(*values)}"
    score, amount = in_roundings(found.relative, epsilon_of(record.dtype)), amount_apart(*values)
    return Suspect(kind, one, other, "input", slot, score, what, amount)


def changed_since(maker: str) -> str:
    """Describe memory that something else overwrote after an operator wrote it."""
    return f"something other than an operator overwrote the output of {maker}"


def shown_data(record: TensorRecord) -> str:
    """The name of an input without a maker, for messages: `data-0`, `inputs0, an input of the network`."""
    name = leaf_name(record)
    if name and not names_a_state(name) and name.startswith("Parameter."):
        return f"{name.removeprefix('Parameter.')}, an input of the network"
    return shown_source(name) or "an input of the program"


def shows(a: Trace, b: Trace, alignment: Alignment, other: Node) -> bool:
    """Whether a node of B affects a result: an output that no operator reads, a number that the program reads, or an operator that only B
    runs. Paths are followed while the outputs of the two runs differ.
    """
    users = b.users()
    waiting, seen = [other.index], {other.index}
    while waiting:
        node = b.nodes[waiting.pop()]
        partner = alignment.a_of.get(node.index)
        if partner is None or not node.outputs:
            return True
        for slot, record in node.outputs.items():
            if slot in node.unspecified:
                continue
            before = a.nodes[partner].outputs.get(slot)
            first, second = None if before is None else recorded(before), recorded(record)
            if first is not None and second is not None:
                found = unshaped_difference(first, second)
                if found.relative <= DIVERGENCE * epsilon_of(record.dtype):
                    continue
            readers = [index for index, _ in users.get((node.index, slot), ())]
            if not readers:
                return True
            waiting += [index for index in readers if index not in seen]
            seen.update(readers)
    return False


def _data(trace: Trace, reads: Collection[Place]) -> list[Read]:
    found: list[Read] = []
    for index, slot in sorted(reads):
        node = trace.nodes[index]
        record = node.inputs[slot]
        if not has_elements(record) or names_a_state(leaf_name(record)):
            continue
        if storages_of([record]) & storages_of(node.outputs.values()):
            continue  # the operator also writes it: an accumulated gradient, or a running average
        values = record.numpy().reshape(-1)
        if values.size > 1 and not any(same_bits(values, known.values) for known in found):
            found.append(Read(node, slot, values))
    return found


def _is_changed(one: Read, other: Read) -> bool:
    """Whether elements differ by more than rounding, and not only in their order."""
    if is_permutation(one.values, other.values):
        return False
    least = DATA.of(epsilon_of(other.node.inputs[other.slot].dtype))
    return not least or difference(one.values, other.values).peak > least


def _share(one: Array, other: Array) -> float:
    """The share of equal elements; 0 if dtypes or sizes differ."""
    if one.dtype != other.dtype or one.size != other.size:
        return 0.0
    return float(np.mean(equal_elements(one, other)))


# Finds random initial values, such as those of parameters, that differ between the runs and that an operator reads. The source of such an
# input is the parameter and not the random operator, so reads are found by memory. Values that are overwritten before a read do not count.

OTHER_NUMBERS: Final = 0.05
"""Relative: random numbers with a larger difference were drawn differently."""


def initial_draws(a: Trace, b: Trace, alignment: Alignment) -> Iterator[Suspect]:
    """Yield the random operators of the forward pass of B that produced different numbers than in A, if an operator reads them."""
    for there, here in sorted(alignment.a_of.items()):
        one, other = a.nodes[here], b.nodes[there]
        if other.op.phase != "forward" or not draws(other) or one.written_arguments != other.written_arguments:
            continue
        suspects = drawn_otherwise(b, one, other, OTHER_NUMBERS)
        yield from (each for each in suspects if other.outputs[each.slot].memory is not None)


def drawn_otherwise(b: Trace, one: Node, other: Node, within: float) -> Iterator[Suspect]:
    """Yield the suspects for the outputs of a random operator that an operator of B reads, and that differ by more than `within`."""
    what = "the same operator drew different random numbers: the seed or the number of earlier draws differs"
    for slot, first, second in outputs_of_both(one, other):
        is_drawn = first.shape == second.shape and difference(first, second).relative > within
        if is_drawn and _is_read(b, other, slot):
            yield Suspect("random", one, other, "output", slot, math.inf, what)


def _is_read(trace: Trace, drawn: Node, slot: int) -> bool:
    """Whether an operator reads this output, or a result of in-place operators on it. Operators that only overwrite it do not count. True if
    its memory or values are unknown.
    """
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
