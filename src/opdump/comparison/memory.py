"""The memory of a run, replayed: what every operator wrote where, so that the value of each input can be looked up.

Views need not be recorded for that: an input says which storage it reads, from which element on and by which strides. Where a dump does
not have this (`TensorRecord.memory`), an input is looked up by the operator that made it, and is known if the shape is still the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.differences import same_bits
from opdump.comparison.trace import Node
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

    def write(self, index: int, slot: int, record: TensorRecord, values: Array) -> None:
        """The node wrote these values; -1 for what no node wrote."""
        values = widened(values) if self.wide else values
        if record.memory is None:
            self._made[index, slot] = (values, record)
            return
        where = record.memory
        extent = _extent(record)
        buffer = self._buffers.get(where.storage)
        if buffer is None or buffer.dtype != record.dtype:
            buffer = self._buffers[where.storage] = _Buffer(
                record.dtype, np.zeros(extent, values.dtype), np.zeros(extent, np.bool_), np.full(extent, -1, np.int32)
            )
        if buffer.values.dtype != values.dtype:
            buffer.values = buffer.values.astype(np.result_type(buffer.values.dtype, values.dtype))
        buffer.reach(extent)
        _view(buffer.values, record)[...] = values
        _view(buffer.known, record)[...] = True
        _view(buffer.writer, record)[...] = index

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
        buffer.reach(_extent(record))
        known = _view(buffer.known, record)
        if not known.any():
            return Read(None)
        writers = frozenset(np.unique(_view(buffer.writer, record)).tolist())
        return Read(_view(buffer.values, record).copy(), None if known.all() else ~known, writers)


def _is_all_of(read: TensorRecord, made: TensorRecord) -> bool:
    """Whether an input is an output as it was made, and no view of it."""
    return (
        read.shape == made.shape
        and read.payload is not None
        and made.payload is not None
        and same_bits(read.numpy(), made.numpy())
    )


def _extent(record: TensorRecord) -> int:
    where = record.memory
    assert where is not None
    if 0 in record.shape:
        return where.offset
    return where.offset + 1 + sum((size - 1) * stride for size, stride in zip(record.shape, where.strides, strict=True))


def _view(buffer: Array, record: TensorRecord) -> Array:
    where = record.memory
    assert where is not None
    if 0 in record.shape:
        return np.zeros(record.shape, buffer.dtype)
    return np.lib.stride_tricks.as_strided(
        buffer[where.offset :], record.shape, [stride * buffer.itemsize for stride in where.strides], writeable=True
    )


def elements(records: Mapping[int, TensorRecord]) -> dict[int, Array]:
    """The recorded elements by slot, of those that have any."""
    return {slot: record.numpy() for slot, record in records.items() if record.payload is not None or 0 in record.shape}
