"""Reads a tensor of a dump file as the codes in the file, so that formats are converted before elements are widened.

bfloat16 stays two bytes until it is written, piece by piece, as float32: a conversion never has more in memory than the codes of
one tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opdump.dump_file import DumpTensor, HeldBytes, data_type
from opdump.dump_file.elements import encode_elements
from opdump.errors import FormatShapeError, UndecodableTensorError
from opdump.formats import DEVICE_FORMATS, can_convert, plain_axes, plain_shapes

PIECE = 1 << 20
"""Bytes of a tensor that are processed at a time."""

# An unsigned type of the same size represents a type that numpy lacks.
_UNSIGNED = {8: 4, 16: 6, 32: 9}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """`codes` are elements of `host_type` if `widened` is false, otherwise the raw codes of the file."""

    tensor: DumpTensor
    codes: npt.NDArray[Any]
    host_type: np.dtype[Any]
    widened: bool
    format_name: str
    is_untouched: bool = False
    """Whether the codes are the first bytes of the tensor in the file, in their order."""

    slabs: Callable[[], Iterator[npt.NDArray[Any]]] | None = None
    """The codes in another format, part by part: they replace `codes`, and `slab_shape` its shape."""
    slab_shape: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape if self.slabs is None else self.slab_shape

    @property
    def dtype_name(self) -> str:
        """The element type in the file: numpy's name if it has one."""
        return self.tensor.dtype if self.widened or self.is_packed else self.host_type.name

    @property
    def is_packed(self) -> bool:
        """Whether a byte of the file contains several elements."""
        return 0 < data_type(self.tensor.data_type).bits < 8

    def values(self) -> Iterator[npt.NDArray[Any]]:
        """The elements in C order as one-dimensional arrays of `host_type`.

        An array that the caller keeps also keeps its slab in memory, beside the next one.
        """
        pieces = self._all_pieces()
        return map(self._widen, pieces) if self.widened else pieces

    def raw(self) -> Iterator[npt.NDArray[Any]]:
        """The elements in C order as stored in the file; several to a byte for types of fewer than 8 bits."""
        if not self.is_packed:
            yield from self._all_pieces()
            return
        kind = data_type(self.tensor.data_type)
        left = np.empty(0, self.codes.dtype)
        for piece in self._all_pieces():
            together = np.concatenate([left, piece])
            del piece
            whole = len(together) // 8 * 8  # in whole bytes, for any type
            yield np.frombuffer(encode_elements(together[:whole], kind.number), np.uint8)
            left = together[whole:]
        yield np.frombuffer(encode_elements(left, kind.number), np.uint8)

    def _all_pieces(self) -> Iterator[npt.NDArray[Any]]:
        for array in (self.codes,) if self.slabs is None else self.slabs():
            yield from _pieces(array)
            del array  # frees it before the next one is made

    def _widen(self, piece: npt.NDArray[Any]) -> npt.NDArray[Any]:
        data = HeldBytes(np.ascontiguousarray(piece).view(np.uint8).data)
        return replace(self.tensor, shape=(len(piece),), data=data).to_host()


def stored_tensor(tensor: DumpTensor) -> StoredTensor:
    """The codes of a tensor, in the device's format and shape.

    Raises UndecodableTensorError if there are fewer bytes than the shape needs, or if no array can have the shape.
    """
    kind = data_type(tensor.data_type)
    host_type = _host_type(kind.number)
    widened = kind.bits in _UNSIGNED and host_type.itemsize * 8 != kind.bits
    try:
        if not widened:
            codes = tensor.to_host()
        else:
            if tensor.size * 8 < math.prod(tensor.shape) * kind.bits:
                tensor.to_host()  # raises, with the name of the true type
            codes = replace(tensor, data_type=_UNSIGNED[kind.bits]).to_host()
    except (ValueError, OverflowError) as error:
        raise UndecodableTensorError(f"{tensor.name}: no array has the shape {tensor.shape} ({error})") from error
    packed = 0 < kind.bits < 8
    return StoredTensor(tensor, codes, host_type, widened, tensor.format_name, not widened and not packed)


@cache
def _host_type(number: int) -> np.dtype[Any]:
    """The element type of a decoded tensor."""
    nothing = DumpTensor(io="input", slot=0, data_type=number, format=2, shape=(0,), data=HeldBytes(b""))
    return nothing.to_host().dtype


def _pieces(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """The elements in C order, a few at a time."""
    if array.flags.c_contiguous:
        flat = array.reshape(-1)
        step = PIECE // array.itemsize
        for start in range(0, len(flat), step):
            yield flat[start : start + step]
    elif array.nbytes <= PIECE:
        yield np.ascontiguousarray(array).reshape(-1)
    elif len(array) == 1:
        yield from _pieces(array[0])
    else:
        step = max(1, PIECE * len(array) // array.nbytes)
        for start in range(0, len(array), step):
            yield from _pieces(array[start : start + step])


# Converts a large tensor to another format part by part; the concatenated parts are the result.
#
# A part is a range of each axis of the tensor's shape. If a device splits an axis into blocks, a range covers whole blocks, or lies
# within one block: it is then an array of the same format with fewer or smaller blocks, and is converted as such.

_Array = npt.NDArray[Any]
_Shape = tuple[int, ...]
_Ranges = tuple[tuple[int, int], ...]

_LOOPS: Final[Mapping[str, tuple[str, int]]] = {
    "NC1HWC0": ("NCHWc", 1),
    "NC1HWC0_C04": ("NCHWc", 1),
    "NDC1HWC0": ("NDCHWc", 1),
    "C1HWNCoC0": ("CHWNcc", 1),
    "FRACTAL_Z": ("CHWNnc", 3),
    "FRACTAL_Z_3D": ("DCHWNnc", 4),
}
"""Format -> the axes of the loops over its memory, in lower case within a block; and the number of leading loops that form one
axis.
"""
_ROWS_OF_BLOCK: Final = 16


@dataclass(frozen=True, slots=True)
class _Memory:
    """The memory order of an array: the axis of the tensor for each loop, the last `inner` of them within a block."""

    axes: _Shape
    inner: int = 0
    joined: int = 1
    """The number of leading loops that form one axis of the array."""

    @property
    def outer(self) -> _Shape:
        return self.axes[: len(self.axes) - self.inner]

    @property
    def within(self) -> _Shape:
        return self.axes[len(self.axes) - self.inner :]

    def loops(self, shape: _Shape, blocks: Mapping[int, int]) -> _Shape:
        """The number of iterations of each loop except the inner ones."""
        return tuple(-(-shape[axis] // blocks.get(axis, 1)) for axis in self.outer)

    def shape_of(self, loops: _Shape, places: _Shape) -> _Shape:
        """The shape of the array."""
        return (math.prod(loops[: self.joined]), *loops[self.joined :], *places) if loops else places


@dataclass(frozen=True, slots=True)
class Slabs:
    """How a tensor is split; `parts` yields the arrays to convert, each with its target shape."""

    shape: _Shape
    """Shape of the result."""
    _apart: _Array
    _memory: _Memory
    _blocks: Mapping[int, int]
    _ranges: tuple[_Ranges, ...]

    def parts(self) -> Iterator[tuple[_Array, _Shape]]:
        for ranges in self._ranges:
            yield self._part(ranges), tuple(stop - start for start, stop in ranges)

    def _part(self, ranges: _Ranges) -> _Array:
        index = []
        for axis in self._memory.outer:
            start, stop = ranges[axis]
            block = self._blocks.get(axis, 1)
            index.append(slice(start // block, -(-stop // block)))
        for axis in self._memory.within:
            start, stop = ranges[axis]
            block = self._blocks[axis]
            within = start // block == (stop - 1) // block
            index.append(slice(start % block, (stop - 1) % block + 1) if within else slice(None))
        part = self._apart[tuple(index)]
        joined = self._memory.joined
        return part.reshape(math.prod(part.shape[:joined]), *part.shape[joined:]) if joined > 1 else part


def slabs_of(array: _Array, source: str, target: str, shape: _Shape | None, most: int) -> Slabs | None:
    """Parts of at most `most` elements of the result, unless one element of the outermost axes is larger.

    `shape` is as in `convert_format`. None if the tensor should not or cannot be split: the array does not have that shape, both
    formats are the same or cannot be converted, or a format is not in the table above.
    """
    if source == target or not can_convert(source, target):
        return None
    try:
        shape = plain_shapes(array, source, target, shape).there
    except FormatShapeError:
        return None
    order = plain_axes(target, source)
    reading, writing = _memory(source, order, len(shape)), _memory(target, order, len(shape))
    if reading is None or writing is None or 0 in (*shape, *array.shape):
        return None
    places = array.shape[array.ndim - reading.inner :]
    blocks = dict(zip(reading.within, places, strict=True))
    c0 = DEVICE_FORMATS[target].c0 if target in DEVICE_FORMATS else 1
    units = dict.fromkeys(writing.within, _ROWS_OF_BLOCK) | dict.fromkeys(writing.within[-1:], c0)
    ranges = tuple(_cut(tuple((0, size) for size in shape), writing.outer, units, blocks, most))
    if len(ranges) < 2:
        return None
    result = writing.shape_of(writing.loops(shape, units), tuple(units[axis] for axis in writing.within))
    # Leading axes of FRACTAL_NZ may be split differently in the array.
    return Slabs(result, array.reshape(*reading.loops(shape, blocks), *places), reading, blocks, ranges)


def _memory(name: str, order: str, rank: int) -> _Memory | None:
    if name == "FRACTAL_NZ":
        rows, columns = rank - 2, rank - 1
        return _Memory((*range(rows), columns, rows, rows, columns), inner=2) if rows >= 0 else None
    if name in _LOOPS:
        loops, joined = _LOOPS[name]
        if any(letter not in order for letter in loops.upper()):
            return None
        return _Memory(
            tuple(order.index(letter.upper()) for letter in loops), sum(map(str.islower, loops)), joined=joined
        )
    if name in DEVICE_FORMATS:
        return None
    return _Memory(tuple(range(rank)) if "ND" in (name, order) else tuple(order.index(letter) for letter in name))


def _cut(
    ranges: _Ranges, loops: _Shape, units: Mapping[int, int], blocks: Mapping[int, int], most: int
) -> Iterator[_Ranges]:
    """The ranges in the memory order of the result, whose loops run over the axes `loops` in steps of `units`."""
    if not loops or _elements(ranges, units) <= most:
        yield ranges
        return
    axis, rest = loops[0], loops[1:]
    unit, block = units.get(axis, 1), blocks.get(axis, 1)
    start, stop = ranges[axis]
    of_one = _elements((*ranges[:axis], (0, unit), *ranges[axis + 1 :]), units)
    step = _step(max(1, most // of_one), unit, block)
    for at in range(start, stop, step):
        part = (*ranges[:axis], (at, min(at + step, stop)), *ranges[axis + 1 :])
        if step == unit:
            yield from _cut(part, rest, units, blocks, most)
        else:
            yield part


def _step(count: int, unit: int, block: int) -> int:
    """At most `count` units that are whole blocks or lie within one; more if there is no such number."""
    whole = math.lcm(unit, block)
    if count * unit >= whole:
        return count * unit // whole * whole
    for units in range(count, 0, -1):
        if block % (units * unit) == 0:
            return units * unit
    return whole


def _elements(ranges: _Ranges, units: Mapping[int, int]) -> int:
    """The number of elements of the result, padding included."""
    return math.prod(
        -(-(stop - start) // units.get(axis, 1)) * units.get(axis, 1) for axis, (start, stop) in enumerate(ranges)
    )
