"""The memory of a run, replayed: what every operator wrote where, so that the value of each input can be looked up.

Views need not be recorded for that: an input says which storage it reads, from which element on and by which strides. Where a dump does
not have this (`TensorRecord.memory`), an input is looked up by the operator that made it, and is known if the shape is still the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.differences import same_bits
from opdump.comparison.lifetimes import Lifetimes
from opdump.comparison.nodes import Node
from opdump.comparison.trace import has_elements
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
