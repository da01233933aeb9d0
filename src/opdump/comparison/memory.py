"""Replays the memory of a run from what each operator wrote, so that the value of each input can be looked up.

This needs no records of views: an input has its storage, offset and strides (`TensorRecord.memory`). Without these, an input is looked up by
its maker, and is known if it still has the same shape and elements.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdump.catalog.catalog import Catalog
from opdump.comparison.differences import (
    Array,
    equal_elements,
    extent_of,
    has_elements,
    in_storage_order,
    same_bits,
    view_of,
)
from opdump.comparison.nodes import Node, Place, storages_of
from opdump.comparison.trace import Lifetimes, Trace, leaf_name, names_a_state, read_traces
from opdump.records import Phase, TensorRecord


def widened(array: Array) -> Array:
    """Floats as float64 and complex numbers as complex128; other arrays unchanged."""
    if array.dtype.kind == "f":
        return array.astype(np.float64, copy=False)
    return array.astype(np.complex128, copy=False) if array.dtype.kind == "c" else array


@dataclass(slots=True)
class _Buffer:
    """The contents of a storage. Arrays are taken and handed out without a copy, so they are copied before a part of one is written."""

    dtype: str
    values: Array
    known: NDArray[np.bool_] | None
    """Which elements are known; None if all are."""
    writer: NDArray[np.int32] | int
    """The node that wrote each element; one number if a single node wrote all."""
    is_shared: bool = True

    @classmethod
    def empty(cls, dtype: str, size: int, kind: np.dtype[Any]) -> _Buffer:
        return cls(dtype, np.zeros(size, kind), np.zeros(size, np.bool_), np.full(size, -1, np.int32), is_shared=False)

    def to_write(self, extent: int) -> tuple[Array, NDArray[np.bool_], NDArray[np.int32]]:
        """The values, known flags and writers of at least `extent` elements, to write a part of each."""
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
        """The nodes that wrote the elements of a tensor."""
        if isinstance(self.writer, int):
            return frozenset({self.writer})
        return frozenset(np.unique(view_of(self.writer, record)).tolist())

    def writers(self) -> frozenset[int]:
        return frozenset({self.writer}) if isinstance(self.writer, int) else frozenset(np.unique(self.writer).tolist())

    def seen(self) -> Named:
        """All contents, which later writes do not change."""
        self.is_shared = True
        return Named(self.dtype, self.values, _all_known(len(self.values)) if self.known is None else self.known.copy())


def _all_known(size: int) -> NDArray[np.bool_]:
    return np.broadcast_to(np.True_, size)


@dataclass(frozen=True, slots=True)
class Named:
    """The contents of a named tensor: the elements in the order of the storage, and which of them are known.

    So the tensor can be read through any view of the storage.
    """

    dtype: str
    values: Array
    known: NDArray[np.bool_] | None
    place: TensorRecord | None = None
    """A record of a tensor in the storage."""

    def and_what(self, later: Named) -> Named:
        """This, with the elements that only `later` knows."""
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
        """The elements of this view; None if they are not all known, or do not fit the storage."""
        if record.memory is None or self.known is None:
            return self.values if self.known is None and self.values.shape == record.shape else None
        if self.dtype != record.dtype or extent_of(record) > len(self.values) or not view_of(self.known, record).all():
            return None
        return view_of(self.values, record)


@dataclass(frozen=True, slots=True)
class Read:
    """The contents of an input. `values` is None if nothing is known; `unknown` marks elements without a known writer."""

    values: Array | None
    unknown: NDArray[np.bool_] | None = None
    writers: frozenset[int] = frozenset()
    """The indices of the nodes that wrote it; -1 for values that were filled in."""


@dataclass(slots=True)
class Memory:
    """Values by storage, or by the output that made them. With `wide`, floats are kept as float64."""

    wide: bool = True
    _buffers: dict[int, _Buffer] = field(default_factory=dict)
    _made: dict[Place, tuple[Array, TensorRecord]] = field(default_factory=dict)

    def write(
        self, index: int, slot: int, record: TensorRecord, values: Array, only: NDArray[np.bool_] | None = None
    ) -> None:
        """Stores values that a node wrote, or the elements in `only`. The index is -1 for values that no node wrote."""
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
        """Fills the unknown elements of a storage from `held`."""
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
        """Drops what no operator after this one uses."""
        for storage in ends.storages.get(index, ()):
            self._buffers.pop(storage, None)
        for place in ends.outputs.get(index, ()):
            self._made.pop(place, None)

    def contents(self, storages: Iterable[int] | None = None) -> Iterator[tuple[str, Array, frozenset[int]]]:
        """The element type, the contents and the writers of all storages, or of these, that are wholly known."""
        for storage in self._buffers if storages is None else storages:
            buffer = self._buffers.get(storage)
            if buffer is not None and (buffer.known is None or buffer.known.all()):
                yield buffer.dtype, buffer.values, buffer.writers()

    def storages(self) -> Iterator[tuple[int, Named]]:
        """All storages with known elements."""
        for storage, buffer in self._buffers.items():
            yield storage, buffer.seen()

    def storage(self, number: int) -> Named | None:
        """The contents of one storage; None if nothing of it is known."""
        buffer = self._buffers.get(number)
        return None if buffer is None else buffer.seen()

    def last_writers(self, number: int) -> frozenset[int]:
        """The nodes that wrote the contents of a storage."""
        buffer = self._buffers.get(number)
        return frozenset() if buffer is None else buffer.writers() - {-1}

    def named(self, record: TensorRecord) -> Named | None:
        """The whole storage of a record; None if nothing of it is known."""
        buffer = None if record.memory is None else self._buffers.get(record.memory.storage)
        return None if buffer is None else replace(buffer.seen(), place=record)

    def read(self, node: Node, slot: int) -> Read:
        """The current contents of an input of a node."""
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
            # Copy a small part, so that it does not keep the whole array alive, and the next write does not copy the whole.
            values = values.copy()
        else:
            buffer.is_shared = True
        return Read(values, None if known is None or known.all() else ~known, buffer.writers_in(record))


def _is_all_of(read: TensorRecord, made: TensorRecord) -> bool:
    """Whether an input is a whole output, unchanged."""
    return (
        read.shape == made.shape and has_elements(read) and has_elements(made) and same_bits(read.numpy(), made.numpy())
    )


# Finds a storage again by its recorded bits, because each step numbers its storages anew.


@dataclass(frozen=True, slots=True)
class Contents:
    """The recorded contents of storages at the end of a step or part, and the names of tensors in them."""

    recorded: Memory = field(default_factory=lambda: Memory(wide=False))
    names: Mapping[str, int] = field(default_factory=dict)
    _by_first: dict[tuple[str, int], Mapping[bytes, Sequence[int]]] = field(default_factory=dict)
    """Storages by element type and offset, then by the element there."""

    def storage_of(self, record: TensorRecord, values: Array, asked: NDArray[np.bool_] | None = None) -> int | None:
        """The storage that has these recorded elements at the place of the tensor; None if there is none.

        `asked` marks the elements that have to agree, if not all do.
        """
        if record.memory is None or not values.size:
            return None
        named = self.names.get(leaf_name(record))
        others = self._with_first(record, values) if asked is None else [each for each, _ in self.recorded.storages()]
        # Storages that end with the tensor come before longer ones.
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


# Joins the parts of a step, which number their storages anew: a storage with the contents that an earlier part left is the same storage.
# Without elements, contents are equal if their statistics are, and only one storage has these statistics.
# Several steps are joined in the same way if two runs have different step boundaries (each call of a TensorFlow function is a step).


def read_step(catalog: Catalog, step: int, rank: int | None = None) -> Trace:
    """A step as one trace, of the lowest rank by default."""
    return _joined(read_traces(catalog, step, rank))


def read_whole(catalog: Catalog, rank: int) -> Trace:
    """All steps of a rank as one trace."""
    return _joined([part for step in catalog.steps_of(rank) for part in read_traces(catalog, step, rank)])


def are_cut_otherwise(a: Catalog, b: Catalog, rank: int, steps: Sequence[tuple[int, int]]) -> bool:
    """Whether two TensorFlow runs have different step boundaries: different numbers of steps (only those that train are counted, if any do), or in
    one of the first pairs of `steps` other phases, or a line of both programs that writes another number of variables. An eager step of Keras, for
    example, ends before the metrics are updated.

    The functions in a step do not count, because one program may call a function of what the other runs eagerly.
    """
    if {run.framework for dump in (a, b) for run in dump.runs} != {"tensorflow"}:
        return False
    counts = [(len(training_steps(dump, rank)), len(dump.steps_of(rank))) for dump in (a, b)]
    trained, all_steps = zip(*counts, strict=True)
    one, other = trained if any(trained) else all_steps
    return one != other or _do_other_work(a, b, rank, steps[:_STEPS_LOOKED_AT])


_STEPS_LOOKED_AT: Final = 3
"""The phases and written variables are compared in at most this many steps."""
_WRITES: Final = re.compile(r"(?:Resource)?(?:Sparse)?(?:Apply|Assign)|ResourceScatter")


def training_steps(dump: Catalog, rank: int) -> list[int]:
    """The steps with a backward pass."""
    return [step for step in dump.steps_of(rank) if any(op.phase == "backward" for op in dump.table(step, rank).ops)]


def _do_other_work(a: Catalog, b: Catalog, rank: int, steps: Sequence[tuple[int, int]]) -> bool:
    """Whether the steps of a pair have operators of other phases, or write another number of variables on a line. Lines that only one run writes on do
    not count: a session does not show how variables began.
    """
    pairs = [(_work(a, here, rank), _work(b, there, rank)) for here, there in steps]
    both = {line for (_, one), _ in pairs for line in one} & {line for _, (_, other) in pairs for line in other}
    return any(
        phases != others or any(one[line] != other[line] for line in both) for (phases, one), (others, other) in pairs
    )


def _work(dump: Catalog, step: int, rank: int) -> tuple[set[Phase], Counter[str]]:
    """The phases of a step, and the number of variables that each line writes."""
    ops = [op for op in dump.table(step, rank).ops if not op.skip]
    return {op.phase for op in ops}, Counter(op.line for op in ops if _WRITES.match(op.op_type))


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
        self._left: dict[int, dict[Hashable, Place | None]] = defaultdict(dict)
        """The statistics in each storage, with the output that made them."""
        self._states: dict[int, str] = {}
        """The names of parameters by storage."""
        self._count = 0
        """The number of storages so far."""

    def add(self, part: Trace) -> None:
        """Appends a part."""
        before = self._found_in(Contents(self._held, dict(self._names)))
        known: dict[int, int] = {}
        start = len(self.nodes)
        for node in part.nodes:
            inputs = {slot: self._placed(record, known, before) for slot, record in node.inputs.items()}
            # A storage that is written before it is read in this part is new.
            outputs = {slot: self._placed(record, known, _found_nowhere) for slot, record in node.outputs.items()}
            makers = {slot: (maker + start, output) for slot, (maker, output) in node.makers.items()}
            for slot, record in inputs.items():
                maker = None if slot in makers else self._maker(record)
                if maker is not None:
                    makers[slot] = maker
                if leaf_name(record) and record.memory is not None and record.memory.storage in self._states:
                    # Only the first part names parameters.
                    inputs[slot] = replace(record, source=self._states[record.memory.storage])
            moved = replace(node, index=len(self.nodes), inputs=inputs, outputs=outputs, makers=makers)
            self._follow(moved)
            self.nodes.append(moved)
        finals = {name: self._placed(record, known, before) for name, record in part.finals.items()}
        for name, record in finals.items():
            if record.memory is not None:
                self._states[record.memory.storage] = f"Parameter.{name}"
        self.finals |= finals

    def _found_in(self, before: Contents) -> Callable[[TensorRecord], int | None]:
        """Finds the storage of a record among those of the earlier parts."""
        by_statistics: dict[Hashable, list[int]] = defaultdict(list)
        for storage, left in self._left.items():
            for seen in left.keys() - {None}:
                by_statistics[seen].append(storage)

        def find(record: TensorRecord) -> int | None:
            if has_elements(record):
                return before.storage_of(record, record.numpy())
            like = by_statistics.get(_by_statistics(record), ())
            return like[0] if len(like) == 1 else None

        return find

    def _placed(
        self, record: TensorRecord, known: dict[int, int], find: Callable[[TensorRecord], int | None]
    ) -> TensorRecord:
        if record.memory is None:
            return record
        number = record.memory.storage
        if number not in known:
            found = find(record)
            if found is None or found in known.values():
                found, self._count = self._count, self._count + 1
            known[number] = found
        return replace(record, memory=replace(record.memory, storage=known[number]))

    def _maker(self, record: TensorRecord) -> Place | None:
        """The output of an earlier part that made all of the storage of an input."""
        if record.memory is None:
            return None
        left = self._left[record.memory.storage].get(_by_statistics(record))
        if left is not None:
            return left
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
            if record.memory is None:
                continue
            self._left[record.memory.storage].setdefault(_by_statistics(record), node.makers.get(slot))
            if names_a_state(leaf_name(record)):
                self._states[record.memory.storage] = leaf_name(record)
            if not has_elements(record):
                continue
            if leaf_name(record):
                self._names[leaf_name(record)] = record.memory.storage
            read = self._held.read(node, slot)
            if read.values is None or read.unknown is not None:
                self._held.write(-1, slot, record, record.numpy())
        for slot, record in node.outputs.items():
            if record.memory is not None:
                self._left[record.memory.storage] = {_by_statistics(record): (node.index, slot)}
            if has_elements(record):
                self._held.write(node.index, slot, record, record.numpy())


def _found_nowhere(_: TensorRecord) -> None:
    """For a storage that no earlier part has."""


def _by_statistics(record: TensorRecord) -> Hashable:
    """The place in a storage and the statistics of a tensor; None if all elements are equal, as in many tensors of zeros."""
    assert record.memory is not None
    told = record.statistics
    if told.get("max") == told.get("min"):
        return None
    return record.dtype, record.memory.offset, math.prod(record.shape), tuple(told.items())


# Finds the inputs of a step that the previous step left. Each step numbers its storages anew, but a storage holds the same bits at the end of
# a step and at the beginning of the next.

_TELLING: Final = 4
"""Two storages do not share this many distinct elements by chance, unlike a counter or a mask of ones."""
_ELEMENTS_LOOKED_AT: Final = 256


@dataclass(frozen=True, slots=True)
class Carried:
    """What a step finds again of the previous step."""

    inputs: Mapping[Place, int] = field(default_factory=dict)
    """The storage of the previous step, by node and slot."""
    storages: Mapping[int, int] = field(default_factory=dict)
    """The storage of the previous step, by storage of this step, if the elements identify it without doubt."""
    held_before: AbstractSet[int] = frozenset()
    """Storages of this step with anything from the previous step."""
    rewritten: AbstractSet[int] = frozenset()
    """Storages of the previous step that this step finds again and writes into: states, not constants."""

    @property
    def wanted(self) -> set[int]:
        """The storages of the previous step that this step finds again."""
        return {*self.inputs.values(), *self.storages.values()}


@dataclass(slots=True)
class StateTracker:
    """Follows the storages of a program from step to step."""

    _left: Contents = field(default_factory=Contents)

    def step(self, trace: Trace) -> Carried:
        """Processes the next step."""
        inputs: dict[Place, int] = {}
        storages: dict[int, int] = {}
        before_of: dict[int, int] = {}
        seen = Memory(wide=False)
        for node, slot, values, asked in _unwritten_inputs(trace, seen):
            record = node.inputs[slot]
            found = self._left.storage_of(record, values, asked)
            if found is not None and record.memory is not None:
                inputs[node.index, slot] = before_of[record.memory.storage] = found
                if len(np.unique(values.flat[:_ELEMENTS_LOOKED_AT])) >= _TELLING:
                    storages[record.memory.storage] = found
        for storage, before in storages.items():
            # If a step read only a part of a storage (some rows of the data), the rest is still there.
            held = self._left.recorded.storage(before)
            if held is not None:
                seen.complete(storage, held)
        self._left = Contents(seen, _storages_by_name(trace))
        written = storages_of(record for node in trace.nodes for record in node.outputs.values())
        return Carried(inputs, storages, set(before_of), {before_of[each] for each in written & before_of.keys()})


def _unwritten_inputs(trace: Trace, seen: Memory) -> Iterator[tuple[Node, int, Array, NDArray[np.bool_] | None]]:
    """Follow the memory of a step in `seen`. Yield each input that no operator of the step wrote, with its slot and elements; if operators wrote a
    part of it, also which elements they did not write.
    """
    for node in trace.nodes:
        for slot, record in node.inputs.items():
            if record.skip or node.clears(slot):
                continue
            read = seen.read(node, slot)
            is_made = bool(read.writers - {-1})
            if has_elements(record) and (not is_made or read.unknown is not None):
                values, asked = record.numpy(), read.unknown if is_made else None
                yield node, slot, values, asked
                seen.write(-1, slot, record, values, asked)
        for slot, record in node.outputs.items():
            if has_elements(record):
                seen.write(node.index, slot, record, record.numpy())


def _storages_by_name(trace: Trace) -> dict[str, int]:
    """The storages of named inputs and of the parameters at the end of a step."""
    named = [
        (leaf_name(record), record)
        for node in trace.nodes
        for slot, record in node.inputs.items()
        if not record.skip and not node.clears(slot)
    ]
    named += [(f"Parameter.{name}", record) for name, record in trace.finals.items()]
    return {name: record.memory.storage for name, record in named if name and record.memory is not None}


# Replaces the states of B by those of A, element by element, even if the programs name or join them differently.

_SAME: Final = 1e-6
"""Relative tolerance for equal values in float64; much closer than recorded float32 values."""


class StateMapping:
    """Finds, for each float64 element that B left, the equal element of A, and the value that A recorded for it.

    carried   what a step of A and of B finds again of the previous step
    left      the float64 contents of storages that A and B left in the previous step
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
        """The values that A recorded for the elements of an input of B from the previous step; None if A lacks any of them."""
        storage = self._inputs.get((node.index, slot))
        own = None if storage is None else _seen_as(self._left, storage, node.inputs[slot])
        if own is None or not self._values.size:
            return None
        after = np.searchsorted(self._values, own).clip(max=self._values.size - 1)
        before = (after - 1).clip(min=0)
        with np.errstate(invalid="ignore"):  # two infinities have no distance
            is_after = np.abs(self._values[after] - own) <= np.abs(self._values[before] - own)
        # Sorted values end with infinity and NaN, which are nearest to themselves.
        is_after |= np.isnan(own) | (self._values[after] == own)
        nearest = np.where(is_after, after, before)
        if not np.allclose(self._values[nearest], own, rtol=_SAME, atol=0.0, equal_nan=True):
            return None
        found: Array = self._recorded[nearest]
        return found


def _seen_as(left: Mapping[int, Named], storage: int, record: TensorRecord) -> Array | None:
    """The tensor in the contents of its storage, if these are floats."""
    held = left.get(storage)
    values = None if held is None else held.seen_as(record)
    return values if values is not None and values.dtype.kind == "f" else None
