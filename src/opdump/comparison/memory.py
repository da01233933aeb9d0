"""The memory of a run, replayed: what every operator wrote where, so that the value of each input can be looked up.

Views need not be recorded for that: an input says which storage it reads, from which element on and by which strides. Where a dump does
not have this (`TensorRecord.memory`), an input is looked up by the operator that made it, and is known if the shape is still the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.differences import same_bits
from opdump.comparison.lifetimes import Lifetimes
from opdump.comparison.trace import Node, has_elements
from opdump.records import TensorRecord

Array = NDArray[Any]


def widened(array: Array) -> Array:
    """Floats as float64 and complex numbers as complex128; others as they are."""
    if array.dtype.kind == "f":
        return array.astype(np.float64)
    return array.astype(np.complex128) if array.dtype.kind == "c" else array


@dataclass(slots=True)
class _Buffer:
    dtype: str
    values: Array
    known: NDArray[np.bool_]
    writer: NDArray[np.int32]

    def reach(self, extent: int) -> None:
        more = extent - len(self.values)
        if more > 0:
            self.values = np.concatenate([self.values, np.zeros(more, self.values.dtype)])
            self.known = np.concatenate([self.known, np.zeros(more, np.bool_)])
            self.writer = np.concatenate([self.writer, np.full(more, -1, np.int32)])


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
        found: Array = view_of(self.values, record).copy()
        return found


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
        where = record.memory
        extent = extent_of(record)
        buffer = self._buffers.get(where.storage)
        if buffer is None or buffer.dtype != record.dtype:
            buffer = self._buffers[where.storage] = _Buffer(
                record.dtype, np.zeros(extent, values.dtype), np.zeros(extent, np.bool_), np.full(extent, -1, np.int32)
            )
        if buffer.values.dtype != values.dtype:
            buffer.values = buffer.values.astype(np.result_type(buffer.values.dtype, values.dtype))
        buffer.reach(extent)
        written = True if only is None else only
        np.copyto(view_of(buffer.values, record), values, where=written)
        np.copyto(view_of(buffer.known, record), True, where=written)
        np.copyto(view_of(buffer.writer, record), index, where=written)

    def complete(self, number: int, held: Named) -> None:
        """What is not known of a storage is what `held` knows."""
        buffer = self._buffers.get(number)
        if buffer is None or held.known is None or buffer.dtype != held.dtype:
            return
        buffer.reach(len(held.values))
        size = len(held.values)
        missing = held.known & ~buffer.known[:size]
        buffer.values[:size][missing] = held.values[missing]
        buffer.known[:size] |= missing

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
            if buffer is not None and buffer.known.all():
                yield buffer.dtype, buffer.values, frozenset(np.unique(buffer.writer).tolist())

    def written(self, storage: int) -> Array | None:
        """What a storage holds that some node wrote, from its first element on; None where no node did."""
        buffer = self._buffers.get(storage)
        return None if buffer is None or not (buffer.writer >= 0).any() else buffer.values

    def storages(self) -> Iterator[tuple[int, Named]]:
        """Every storage of which something is known."""
        for storage, buffer in self._buffers.items():
            yield storage, Named(buffer.dtype, buffer.values, buffer.known)

    def storage(self, number: int) -> Named | None:
        """The same for one of them."""
        buffer = self._buffers.get(number)
        return None if buffer is None else Named(buffer.dtype, buffer.values, buffer.known)

    def last_writers(self, number: int) -> frozenset[int]:
        """Which nodes wrote what a storage holds."""
        buffer = self._buffers.get(number)
        return frozenset() if buffer is None else frozenset(np.unique(buffer.writer).tolist()) - {-1}

    def named(self, record: TensorRecord) -> Named | None:
        """The whole storage that a record lies in; None where nothing of it is known."""
        buffer = None if record.memory is None else self._buffers.get(record.memory.storage)
        return None if buffer is None else Named(buffer.dtype, buffer.values.copy(), buffer.known.copy(), record)

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
        known = view_of(buffer.known, record)
        if not known.any():
            return Read(None)
        writers = frozenset(np.unique(view_of(buffer.writer, record)).tolist())
        return Read(view_of(buffer.values, record).copy(), None if known.all() else ~known, writers)


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
    where = record.memory
    assert where is not None
    if 0 in record.shape:
        return np.zeros(record.shape, buffer.dtype)
    return np.lib.stride_tricks.as_strided(
        buffer[where.offset :], record.shape, [stride * buffer.itemsize for stride in where.strides], writeable=True
    )


def in_storage_order(values: Array, record: TensorRecord) -> Array | None:
    """The elements in the order in which they lie in memory; None where the tensor has gaps, or its memory is not known."""
    where = record.memory
    if where is None or values.size == 0 or extent_of(record) - where.offset != values.size:
        return None
    axes = sorted(range(values.ndim), key=lambda axis: -where.strides[axis])
    flat: Array = values.transpose(axes).reshape(-1)
    return flat
