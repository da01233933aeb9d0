"""The memory of a run, replayed: what every operator wrote where, so that the value of each input can be looked up.

Views need not be recorded for that: an input says which storage it reads, from which element on and by which strides. Where a dump does
not have this (`TensorRecord.memory`), an input is looked up by the operator that made it, and is known if the shape is still the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdump.catalog.catalog import Catalog
from opdump.comparison.differences import equal_elements, same_bits
from opdump.comparison.nodes import Node
from opdump.comparison.trace import Lifetimes, Trace, has_elements, leaf_name, read_traces
from opdump.records import TensorRecord

Array = NDArray[Any]


def widened(array: Array) -> Array:
    """Floats as float64 and complex numbers as complex128; others as they are."""
    if array.dtype.kind == "f":
        return array.astype(np.float64, copy=False)
    return array.astype(np.complex128, copy=False) if array.dtype.kind == "c" else array


@dataclass(slots=True)
class _Buffer:
    """What a storage holds. Arrays are taken as they come and handed out as they are, so they are copied before a part is written into one."""

    dtype: str
    values: Array
    known: NDArray[np.bool_] | None
    """Which elements are known; None where all are."""
    writer: NDArray[np.int32] | int
    """Who wrote each element; one number where one wrote them all."""
    is_shared: bool = True

    @classmethod
    def empty(cls, dtype: str, size: int, kind: np.dtype[Any]) -> _Buffer:
        return cls(dtype, np.zeros(size, kind), np.zeros(size, np.bool_), np.full(size, -1, np.int32), is_shared=False)

    def to_write(self, extent: int) -> tuple[Array, NDArray[np.bool_], NDArray[np.int32]]:
        """The elements, up to `extent` at least, which are known and who wrote them, to write a part of each."""
        size = len(self.values)
        if self.is_shared:
            self.values, self.is_shared = self.values.copy(), False
        if self.known is None:
            self.known = np.ones(size, np.bool_)
        if isinstance(self.writer, int):
            self.writer = np.full(size, self.writer, np.int32)
        more = extent - size
        if more > 0:
            self.values = np.concatenate([self.values, np.zeros(more, self.values.dtype)])
            self.known = np.concatenate([self.known, np.zeros(more, np.bool_)])
            self.writer = np.concatenate([self.writer, np.full(more, -1, np.int32)])
        return self.values, self.known, self.writer

    def reach(self, extent: int) -> None:
        if extent > len(self.values):
            self.to_write(extent)

    def writers_in(self, record: TensorRecord) -> frozenset[int]:
        """Who wrote what a tensor holds."""
        if isinstance(self.writer, int):
            return frozenset({self.writer})
        return frozenset(np.unique(view_of(self.writer, record)).tolist())

    def writers(self) -> frozenset[int]:
        return frozenset({self.writer}) if isinstance(self.writer, int) else frozenset(np.unique(self.writer).tolist())

    def seen(self) -> Named:
        """All of it, which nothing changes any more."""
        self.is_shared = True
        return Named(self.dtype, self.values, _all_known(len(self.values)) if self.known is None else self.known.copy())


def _all_known(size: int) -> NDArray[np.bool_]:
    return np.broadcast_to(np.True_, size)


@dataclass(frozen=True, slots=True)
class Named:
    """What a named tensor held: its elements as the storage has them, from `start` on, and which of them are known.

    So a transposed view is found again by whoever looks at the tensor in another way.
    """

    dtype: str
    values: Array
    known: NDArray[np.bool_] | None
    place: TensorRecord | None = None
    """A record that lies in the storage."""

    def and_what(self, later: Named) -> Named:
        """This, and what `later` knows beyond it."""
        if (
            self.known is None
            or later.known is None
            or self.dtype != later.dtype
            or len(later.values) < len(self.values)
            or (len(later.values) == len(self.values) and self.known.all())
        ):
            return self
        values, known = later.values.copy(), later.known.copy()
        values[: len(self.values)][self.known] = self.values[self.known]
        known[: len(self.known)] |= self.known
        return Named(self.dtype, values, known, self.place)

    def seen_as(self, record: TensorRecord) -> Array | None:
        """The elements as this record looks at them; None where they are not all known, or not in the same memory."""
        if record.memory is None or self.known is None:
            return self.values if self.known is None and self.values.shape == record.shape else None
        if self.dtype != record.dtype or extent_of(record) > len(self.values) or not view_of(self.known, record).all():
            return None
        return view_of(self.values, record)


@dataclass(frozen=True, slots=True)
class Read:
    """What an input holds. `values` is None where none of it is known; `unknown` marks elements that no operator was seen to write."""

    values: Array | None
    unknown: NDArray[np.bool_] | None = None
    writers: frozenset[int] = frozenset()
    """The nodes that wrote it, by index; -1 for what was filled in."""


@dataclass(slots=True)
class Memory:
    """Values by storage, or by the output that made them. With `wide` floats are kept as float64."""

    wide: bool = True
    _buffers: dict[int, _Buffer] = field(default_factory=dict)
    _made: dict[tuple[int, int], tuple[Array, TensorRecord]] = field(default_factory=dict)

    def write(
        self, index: int, slot: int, record: TensorRecord, values: Array, only: NDArray[np.bool_] | None = None
    ) -> None:
        """The node wrote these values, or those of them; -1 for what no node wrote."""
        values = widened(values) if self.wide else values
        if record.memory is None:
            self._made[index, slot] = (values, record)
            return
        storage, extent = record.memory.storage, extent_of(record)
        buffer = self._buffers.get(storage)
        if buffer is not None and buffer.dtype != record.dtype:
            buffer = None
        flat = in_storage_order(values, record) if record.memory.offset == 0 else None
        if flat is not None and only is None and (buffer is None or len(buffer.values) <= extent):
            self._buffers[storage] = _Buffer(record.dtype, flat, None, index)
            return
        if buffer is None:
            buffer = self._buffers[storage] = _Buffer.empty(record.dtype, extent, values.dtype)
        if buffer.values.dtype != values.dtype:
            buffer.values = buffer.values.astype(np.result_type(buffer.values.dtype, values.dtype))
        written = True if only is None else only
        held, known, writer = buffer.to_write(extent)
        np.copyto(view_of(held, record), values, where=written)
        np.copyto(view_of(known, record), True, where=written)
        np.copyto(view_of(writer, record), index, where=written)

    def complete(self, number: int, held: Named) -> None:
        """What is not known of a storage is what `held` knows."""
        buffer = self._buffers.get(number)
        if buffer is None or held.known is None or buffer.dtype != held.dtype:
            return
        size = len(held.values)
        if buffer.known is None and len(buffer.values) >= size:
            return
        values, known, _ = buffer.to_write(size)
        missing = held.known & ~known[:size]
        values[:size][missing] = held.values[missing]
        known[:size] |= missing

    def release(self, ends: Lifetimes, index: int) -> None:
        """Forget what no operator after this one uses."""
        for storage in ends.storages.get(index, ()):
            self._buffers.pop(storage, None)
        for place in ends.outputs.get(index, ()):
            self._made.pop(place, None)

    def contents(self, storages: Iterable[int] | None = None) -> Iterator[tuple[str, Array, frozenset[int]]]:
        """Every storage, or each of these, of which all is known: its element type, what it holds, and who wrote that."""
        for storage in self._buffers if storages is None else storages:
            buffer = self._buffers.get(storage)
            if buffer is not None and (buffer.known is None or buffer.known.all()):
                yield buffer.dtype, buffer.values, buffer.writers()

    def storages(self) -> Iterator[tuple[int, Named]]:
        """Every storage of which something is known."""
        for storage, buffer in self._buffers.items():
            yield storage, buffer.seen()

    def storage(self, number: int) -> Named | None:
        """The same for one of them."""
        buffer = self._buffers.get(number)
        return None if buffer is None else buffer.seen()

    def last_writers(self, number: int) -> frozenset[int]:
        """Which nodes wrote what a storage holds."""
        buffer = self._buffers.get(number)
        return frozenset() if buffer is None else buffer.writers() - {-1}

    def named(self, record: TensorRecord) -> Named | None:
        """The whole storage that a record lies in; None where nothing of it is known."""
        buffer = None if record.memory is None else self._buffers.get(record.memory.storage)
        return None if buffer is None else replace(buffer.seen(), place=record)

    def read(self, node: Node, slot: int) -> Read:
        """What an input of a node holds now."""
        record = node.inputs[slot]
        if record.memory is None:
            maker = node.makers.get(slot)
            made = None if maker is None else self._made.get(maker)
            if maker is None or made is None or not _is_all_of(record, made[1]):
                return Read(None)
            return Read(made[0], None, frozenset({maker[0]}))
        buffer = self._buffers.get(record.memory.storage)
        if buffer is None or buffer.dtype != record.dtype:
            return Read(None)
        buffer.reach(extent_of(record))
        known = None if buffer.known is None else view_of(buffer.known, record)
        if known is not None and not known.any():
            return Read(None)
        values = view_of(buffer.values, record)
        if 2 * values.size < len(buffer.values):
            # A part: it does not keep the whole, nor has the whole copied before the next part is written.
            values = values.copy()
        else:
            buffer.is_shared = True
        return Read(values, None if known is None or known.all() else ~known, buffer.writers_in(record))


def _is_all_of(read: TensorRecord, made: TensorRecord) -> bool:
    """Whether an input is an output as it was made, and no view of it."""
    return (
        read.shape == made.shape and has_elements(read) and has_elements(made) and same_bits(read.numpy(), made.numpy())
    )


def extent_of(record: TensorRecord) -> int:
    where = record.memory
    assert where is not None
    if 0 in record.shape:
        return where.offset
    return where.offset + 1 + sum((size - 1) * stride for size, stride in zip(record.shape, where.strides, strict=True))


def view_of(buffer: Array, record: TensorRecord) -> Array:
    """The elements of a tensor in what its storage holds."""
    where = record.memory
    assert where is not None
    if 0 in record.shape:
        return np.zeros(record.shape, buffer.dtype)
    (step,) = buffer.strides
    strides = [stride * step for stride in where.strides]
    if step == buffer.itemsize:  # a tenth of the time of `as_strided`
        view: Array = np.ndarray(record.shape, buffer.dtype, buffer, where.offset * step, strides)
        return view
    return np.lib.stride_tricks.as_strided(
        buffer[where.offset :], record.shape, strides, writeable=buffer.flags.writeable
    )


def in_storage_order(values: Array, record: TensorRecord) -> Array | None:
    """The elements in the order in which they lie in memory; None where the tensor has gaps, or its memory is not known."""
    where = record.memory
    if where is None or values.size == 0:
        return None
    axes = sorted(range(values.ndim), key=lambda axis: -where.strides[axis])
    size = 1
    for axis in reversed(axes):
        if values.shape[axis] != 1 and where.strides[axis] != size:
            return None
        size *= values.shape[axis]
    flat: Array = values.transpose(axes).reshape(-1)
    return flat


# Finds a storage again by what was recorded of it: numbers of storages are counted anew, elements stay the same bits.


@dataclass(frozen=True, slots=True)
class Contents:
    """What storages held at the end of something, as it was recorded, and how tensors in them are called."""

    recorded: Memory = field(default_factory=lambda: Memory(wide=False))
    names: Mapping[str, int] = field(default_factory=dict)
    _by_first: dict[tuple[str, int], Mapping[bytes, Sequence[int]]] = field(default_factory=dict)
    """By element type, place in the storage, and the element that is there."""

    def storage_of(self, record: TensorRecord, values: Array, asked: NDArray[np.bool_] | None = None) -> int | None:
        """The storage that has these recorded elements where the tensor lies in its own; None where there is none.

        `asked` are the elements that have to be the same, where these are not all.
        """
        if record.memory is None or not values.size:
            return None
        named = self.names.get(leaf_name(record))
        others = self._with_first(record, values) if asked is None else [each for each, _ in self.recorded.storages()]
        # What is as long as the tensor comes before what has it for a part.
        others = sorted(others, key=lambda each: self._length(each) != extent_of(record))
        storage: int
        for storage in (*(() if named is None else (named,)), *others):
            held = self.recorded.storage(storage)
            before = None if held is None else held.seen_as(record)
            if before is not None:
                equal = equal_elements(before, values)
                if bool((equal if asked is None else equal[asked]).all()):
                    return storage
        return None

    def _length(self, storage: int) -> int:
        held = self.recorded.storage(storage)
        return 0 if held is None else len(held.values)

    def _with_first(self, record: TensorRecord, values: Array) -> Sequence[int]:
        assert record.memory is not None
        place = record.dtype, record.memory.offset
        if place not in self._by_first:
            found: dict[bytes, list[int]] = defaultdict(list)
            for storage, held in self.recorded.storages():
                if held.dtype == record.dtype and len(held.values) > record.memory.offset:
                    found[held.values[record.memory.offset :][:1].tobytes()].append(storage)
            self._by_first[place] = found
        return self._by_first[place].get(values.flat[:1].tobytes(), ())


# Reads a step whose parts number their storages anew as one: a storage of a later part that holds what an earlier one left is the same.
#
# So it does of several steps, where two runs of a program are cut into steps at other places: each call of a TensorFlow function is a step, the same
# operators one by one are a step of the eager program.


def read_step(catalog: Catalog, step: int, rank: int | None = None) -> Trace:
    """A step as one trace; the lowest rank unless one is named."""
    return _joined(read_traces(catalog, step, rank))


def read_whole(catalog: Catalog, rank: int) -> Trace:
    """All steps of a rank as one trace."""
    return _joined([part for step in catalog.steps_of(rank) for part in read_traces(catalog, step, rank)])


def are_cut_otherwise(a: Catalog, b: Catalog, rank: int) -> bool:
    """Whether a step of one run of TensorFlow is no step of the other: the runs have other numbers of steps, or functions where the other has none."""
    frameworks = {run.framework for dump in (a, b) for run in dump.runs}
    if frameworks != {"tensorflow"}:
        return False
    steps = a.steps_of(rank)
    return len(steps) != len(b.steps_of(rank)) or any(
        _graphs(a, step, rank) != _graphs(b, other, rank)
        for step, other in zip(steps[:_STEPS_LOOKED_AT], b.steps_of(rank), strict=False)
    )


_STEPS_LOOKED_AT: Final = 3
"""Of so many steps at most the functions that ran are counted."""


def _graphs(catalog: Catalog, step: int, rank: int) -> int:
    """How many functions ran in a step; the program outside of them counts as one."""
    return len({each.op.graph_id for each in catalog.ops(step=step, rank=rank)})


def _joined(parts: Sequence[Trace]) -> Trace:
    first, *others = parts
    if not others:
        return first
    joining = _Joining()
    for part in (first, *others):
        joining.add(part)
    return Trace(first.step, first.rank, joining.nodes, joining.finals)


class _Joining:
    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.finals: dict[str, TensorRecord] = {}
        self._held = Memory(wide=False)
        self._names: dict[str, int] = {}
        self._count = 0
        """Storages so far."""

    def add(self, part: Trace) -> None:
        """Appends a part."""
        before = Contents(self._held, dict(self._names))
        # What an operator writes into, and no operator of the part read before, is new.
        nothing = Contents()
        known: dict[int, int] = {}
        start = len(self.nodes)
        for node in part.nodes:
            inputs = {slot: self._placed(record, known, before) for slot, record in node.inputs.items()}
            outputs = {slot: self._placed(record, known, nothing) for slot, record in node.outputs.items()}
            makers = {slot: (maker + start, output) for slot, (maker, output) in node.makers.items()}
            for slot, record in inputs.items():
                maker = None if slot in makers else self._maker(record)
                if maker is not None:
                    makers[slot] = maker
            moved = replace(node, index=len(self.nodes), inputs=inputs, outputs=outputs, makers=makers)
            self._follow(moved)
            self.nodes.append(moved)
        self.finals |= {name: self._placed(record, known, before) for name, record in part.finals.items()}

    def _placed(self, record: TensorRecord, known: dict[int, int], before: Contents) -> TensorRecord:
        if record.memory is None:
            return record
        number = record.memory.storage
        if number not in known:
            found = (
                before.storage_of(record, record.numpy())
                if has_elements(record)
                else self._names.get(leaf_name(record))
            )
            if found is None or found in known.values():
                found, self._count = self._count, self._count + 1
            known[number] = found
        return replace(record, memory=replace(record.memory, storage=known[number]))

    def _maker(self, record: TensorRecord) -> tuple[int, int] | None:
        """Who made all of what an input reads, in an earlier part."""
        if record.memory is None:
            return None
        writers = self._held.last_writers(record.memory.storage)
        if len(writers) != 1:
            return None
        (index,) = writers
        for slot, made in self.nodes[index].outputs.items():
            if made.memory is not None and made.memory.storage == record.memory.storage:
                return index, slot
        return None

    def _follow(self, node: Node) -> None:
        for slot, record in node.inputs.items():
            if record.memory is None or not has_elements(record):
                continue
            if leaf_name(record):
                self._names[leaf_name(record)] = record.memory.storage
            read = self._held.read(node, slot)
            if read.values is None or read.unknown is not None:
                self._held.write(-1, slot, record, record.numpy())
        for slot, record in node.outputs.items():
            if has_elements(record):
                self._held.write(node.index, slot, record, record.numpy())


# Which input of a step is what the step before left, and where: one program, by its recorded elements.
#
# Numbers of storages are counted anew in each step, but within a run a storage holds the same bits at the end of a step and at the beginning
# of the next.

_TELLING: Final = 4
"""So many different elements are in no two storages by chance; a counter or a mask of ones is in many."""
_ELEMENTS_LOOKED_AT: Final = 256


@dataclass(frozen=True, slots=True)
class Carried:
    """What a step finds of the step before."""

    inputs: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """By node and slot: the storage of the step before."""
    storages: Mapping[int, int] = field(default_factory=dict)
    """Which storage of the step before one of these is, where its elements tell that beyond doubt."""
    held_before: AbstractSet[int] = frozenset()
    """Storages in which there is anything of it."""
    rewritten: AbstractSet[int] = frozenset()
    """Storages of the step before that this step finds again and writes into: states, and no constants."""

    @property
    def wanted(self) -> set[int]:
        """The storages of the step before that this one finds again."""
        return {*self.inputs.values(), *self.storages.values()}


@dataclass(slots=True)
class Carrying:
    """One program, step after step."""

    _left: Contents = field(default_factory=Contents)

    def step(self, trace: Trace) -> Carried:
        """The next step."""
        inputs: dict[tuple[int, int], int] = {}
        storages: dict[int, int] = {}
        held_before: set[int] = set()
        before_of: dict[int, int] = {}
        written: set[int] = set()
        names: dict[str, int] = {}
        seen = Memory(wide=False)
        for node in trace.nodes:
            for slot, record in node.inputs.items():
                if record.skip or node.clears(slot):
                    continue
                read = seen.read(node, slot)
                is_made = bool(read.writers - {-1})
                if has_elements(record) and (not is_made or read.unknown is not None):
                    values = record.numpy()
                    asked = read.unknown if is_made else None
                    found = self._left.storage_of(record, values, asked)
                    if found is not None and record.memory is not None:
                        inputs[node.index, slot] = before_of[record.memory.storage] = found
                        held_before.add(record.memory.storage)
                        if len(np.unique(values.flat[:_ELEMENTS_LOOKED_AT])) >= _TELLING:
                            storages[record.memory.storage] = found
                    seen.write(-1, slot, record, values, asked)
                if leaf_name(record) and record.memory is not None:
                    names[leaf_name(record)] = record.memory.storage
            for slot, record in node.outputs.items():
                if record.memory is not None:
                    written.add(record.memory.storage)
                if has_elements(record):
                    seen.write(node.index, slot, record, record.numpy())
        for name, record in trace.finals.items():
            if record.memory is not None:
                names[f"Parameter.{name}"] = record.memory.storage
        for storage, before in storages.items():
            # Of a storage that a step read a part of (rows of all the data), the rest is still there.
            held = self._left.recorded.storage(before)
            if held is not None:
                seen.complete(storage, held)
        self._left = Contents(seen, names)
        return Carried(inputs, storages, held_before, {before_of[each] for each in written & before_of.keys()})


# What a state of B would be if the step before were A's: found element by element, whatever the programs call it and however they join it.

_SAME: Final = 1e-6
"""Relative: what both programs left in float64 is as close, far closer than what float32 recorded of it."""


class Counterparts:
    """Of what both programs left in float64: an element of B is the one of A that is the same, and is what A recorded of that.

    carried   what a step of A and of B finds of the step before
    left      what both had left there in float64
    """

    def __init__(
        self,
        a: Trace,
        carried: tuple[Carried, Carried],
        left: tuple[Mapping[int, Named], Mapping[int, Named]],
    ) -> None:
        self._inputs, self._left = carried[1].inputs, left[1]
        values, recorded = [np.zeros(0)], [np.zeros(0)]
        seen: set[tuple[int, object]] = set()
        for (index, slot), storage in carried[0].inputs.items():
            record = a.nodes[index].inputs[slot]
            part = storage, (record.shape, record.memory)
            exact = None if part in seen else _seen_as(left[0], storage, record)
            if exact is not None:
                seen.add(part)
                values.append(exact.reshape(-1))
                recorded.append(widened(record.numpy()).reshape(-1))
        order = np.argsort(np.concatenate(values))
        self._values, self._recorded = np.concatenate(values)[order], np.concatenate(recorded)[order]

    def of(self, node: Node, slot: int) -> Array | None:
        """What A recorded of the elements of an input of B that a step before left; None where A has no such elements."""
        storage = self._inputs.get((node.index, slot))
        own = None if storage is None else _seen_as(self._left, storage, node.inputs[slot])
        if own is None or not self._values.size:
            return None
        after = np.searchsorted(self._values, own).clip(max=self._values.size - 1)
        before = (after - 1).clip(min=0)
        nearest = np.where(np.abs(self._values[after] - own) <= np.abs(self._values[before] - own), after, before)
        if not np.allclose(self._values[nearest], own, rtol=_SAME, atol=0.0, equal_nan=True):
            return None
        found: Array = self._recorded[nearest]
        return found


def _seen_as(left: Mapping[int, Named], storage: int, record: TensorRecord) -> Array | None:
    """The floats of a tensor in what was left in a storage."""
    held = left.get(storage)
    values = None if held is None else held.seen_as(record)
    return values if values is not None and values.dtype.kind == "f" else None
