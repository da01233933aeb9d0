"""Moves elements between a plain tensor and an array of a device format, or between two such arrays.

With a `Reading`, it works box by box, in the memory order of the source. Between two arrays of devices, each box is a separate
array, so that the whole plain tensor is never in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from types import EllipsisType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from opdump.errors import FormatShapeError
from opdump.kernels import copy_elements

# How a large source is read in its memory order, so that pages of a mapped file can be released on the way.
#
# The whole result is in memory and filled box by box: a box is a range of each axis of the plain tensor, chosen so that its
# elements are close together in the source. The order of the result does not matter.

Array = NDArray[Any]
Shape = tuple[int, ...]

Box = tuple[tuple[int, int], ...]
"""Start and end on each axis."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a source is read: `done` is called after every part of about `most` bytes of its memory, which is not read again soon.

    A part is up to twice as large if it does not begin with a block, or as large as the innermost loop of the memory.
    """

    most: int
    done: Callable[[], None]


class Loop(NamedTuple):
    """A loop of the source's memory: it runs along `axis` of the plain tensor, `unit` elements per step, each within `span`
    bytes.
    """

    axis: int
    unit: int
    span: int


def loops_of(array: Array) -> list[Loop]:
    """The loops of an array without blocks, the outermost first."""
    return outermost_first(Loop(axis, 1, abs(stride)) for axis, stride in enumerate(array.strides))


def outermost_first(loops: Iterable[Loop]) -> list[Loop]:
    return sorted(loops, key=lambda loop: loop.span, reverse=True)


def boxes(shape: Shape, loops: Sequence[Loop], reading: Reading | None) -> Iterator[Box]:
    """The tensor box by box; without a reading it is one box. The caller must read each before it requests the next."""
    whole = tuple((0, size) for size in shape)
    if reading is None:
        yield whole
        return
    for box in _cut(whole, loops, reading.most):
        yield box
        reading.done()


def _cut(box: Box, loops: Sequence[Loop], most: int) -> Iterator[Box]:
    if not loops:
        yield box
        return
    axis, unit, span = loops[0]
    start, stop = box[axis]
    if stop - start <= unit:  # the loop does not run
        yield from _cut(box, loops[1:], most)
        return
    step = unit * max(1, most // max(1, span))
    for at in range(start, stop, step):
        part = (*box[:axis], (at, min(at + step, stop)), *box[axis + 1 :])
        if span > most:
            yield from _cut(part, loops[1:], most)
        else:
            yield part


class Placement(Protocol):
    """The positions of a plain tensor's elements in a device's array; all others are padding."""

    def loops(self) -> Sequence[Loop]:
        """The loops of the array's memory, the outermost first."""

    def pairs(self, plain: Array, starts: Shape) -> Iterator[tuple[Array, Array]]:
        """Pairs of views of the same shape, of `plain` and of the device's array, that together cover `plain`.

        `plain` is a part of the tensor, with any strides; `starts` is the index of its first element in the tensor.
        """


def read_elements(source: Placement, plain: Array, reading: Reading | None) -> None:
    """Fill the plain tensor from the device's array."""
    for part, starts in _parts(plain, source.loops(), reading):
        _read(source, part, starts)


def write_elements(plain: Array, target: Placement, reading: Reading | None) -> None:
    """Fill the device's array, except its padding, from the plain tensor."""
    for part, starts in _parts(plain, loops_of(plain), reading):
        _write(part, target, starts)


def move_elements(
    source: Placement, target: Placement, shape: Shape, dtype: np.dtype[np.generic], reading: Reading | None
) -> None:
    """Fill a device's array, except its padding, from another one of the same tensor; `shape` is the tensor's own."""
    for box in boxes(shape, source.loops(), reading):
        part = np.empty([stop - start for start, stop in box], dtype)
        starts = tuple(start for start, _ in box)
        _read(source, part, starts)
        _write(part, target, starts)


def _read(source: Placement, part: Array, starts: Shape) -> None:
    for elements, places in source.pairs(part, starts):
        copy_elements(places, elements)


def _write(part: Array, target: Placement, starts: Shape) -> None:
    for elements, places in target.pairs(part, starts):
        copy_elements(elements, places)


def _parts(plain: Array, loops: Sequence[Loop], reading: Reading | None) -> Iterator[tuple[Array, Shape]]:
    """Parts of the plain tensor, and the index in it where each begins."""
    for box in boxes(plain.shape, loops, reading):
        index: tuple[slice | EllipsisType, ...] = (*(slice(*limits) for limits in box), ...)
        yield plain[index], tuple(start for start, _ in box)


# The parts of a device format, its shapes and its placement, and the shape checks that all formats share.

CUBE = 16
"""Rows of a fractal, and the default number of channels of a block (the side of the device's matrix unit)."""


class PlainShape(Protocol):
    def __call__(self, array: Array, shape: Shape | None, groups: int, /) -> Shape:
        """The shape of the tensor in `array`: `shape`, which excludes the padding; the shape with padding if it is None.

        Raises FormatShapeError if no array of the format has that shape, if a tensor of `shape` has another, or if `shape` is
        required.
        """


class DeviceShape(Protocol):
    def __call__(self, shape: Shape, c0: int, groups: int, /) -> Shape:
        """The shape of an array with a tensor of `shape` in blocks of `c0` channels. Raises FormatShapeError if there is none."""


class Place(Protocol):
    def __call__(self, array: Array, shape: Shape, groups: int, /) -> Placement:
        """The placement of a tensor of `shape` in `array`, whose shape must be right, and which must have elements."""


@dataclass(frozen=True, slots=True)
class DeviceFormat:
    """A device format by its name in dump files. `plain` is the order of a tensor's shape: NCHW, NCDHW or ND (any rank)."""

    name: str
    plain: str
    plain_shape: PlainShape
    device_shape: DeviceShape
    place: Place
    c0: int = CUBE


def ceil_div(count: int, size: int) -> int:
    """The number of blocks of `size` for `count` items."""
    return -(-count // size)


def require_rank(array: Array, name: str, axes: str) -> None:
    """Raises FormatShapeError unless the array has axes such as `N C1 H W C0`, with non-empty blocks (the last axes)."""
    names = axes.split()
    if array.ndim != len(names):
        raise FormatShapeError(
            f"a tensor in {name} has the shape ({', '.join(names)}); found {array.shape}, of {array.ndim} dimensions"
        )
    empty = [axis for axis, size in zip(names, array.shape, strict=True) if axis[-1:] == "0" and size == 0]
    if empty:
        raise FormatShapeError(f"{name} has blocks of {empty[0]} elements; found {empty[0]} = 0 in {array.shape}")


def require_same(found: Shape, expected: Shape, name: str, plain: str, shape: Shape, groups: int = 1) -> None:
    """Raises FormatShapeError unless a device's array has the shape of a tensor with the plain `shape`."""
    if found != expected:
        of_groups = f" with {groups} groups" if groups != 1 else ""
        raise FormatShapeError(
            f"a tensor of the shape {shape} in {plain}{of_groups} has the shape {expected} in {name}; "
            f"found {found}. Give the tensor's original shape"
        )


def require_plain_shape(shape: Shape, plain: str) -> None:
    """Raises FormatShapeError unless `shape` is possible in the plain format."""
    if plain != "ND" and len(shape) != len(plain):
        raise FormatShapeError(f"a shape in {plain} has {len(plain)} dimensions; found {shape}")
    if any(size < 0 for size in shape):
        raise FormatShapeError(f"found shape {shape}, which has a negative dimension")


def require_possible(shape: Shape, dtype: np.dtype[Any]) -> None:
    """Raises FormatShapeError for a shape that no array can have, even without elements."""
    if math.prod(size for size in shape if size) * dtype.itemsize >= 2**63:
        raise FormatShapeError(f"a tensor of the shape {shape} is larger than any memory")


# Places a tensor whose axes are split into blocks, as in most device formats.

Axes = Sequence[tuple[int, ...]]
_Index = tuple[slice | EllipsisType, ...]
"""With an ellipsis, an array without axes stays an array."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A placement in `device`, a view of a device's array with one axis for each loop of its memory.

    `axes[d]` names the loops that form axis d of the tensor: one, or two, the number of the block and the index in it.
    """

    device: Array
    axes: Axes

    def loops(self) -> list[Loop]:
        shape, strides = self.device.shape, self.device.strides
        return outermost_first(
            Loop(axis, shape[parts[1]] if len(parts) > 1 else 1, abs(strides[parts[0]]))
            for axis, parts in enumerate(self.axes)
        )

    def pairs(self, plain: Array, starts: Shape) -> Iterator[tuple[Array, Array]]:
        """Views of raw bytes, because some types cannot be strided."""
        plain, device = plain.view(f"V{plain.itemsize}"), self.device.view(f"V{self.device.itemsize}")
        of_axis = [
            [_Piece(0, (slice(start, start + size),), (size,))]
            if len(parts) == 1
            else _pieces(start, size, device.shape[parts[1]])
            for parts, start, size in zip(self.axes, starts, plain.shape, strict=True)
        ]
        moved = device.transpose([axis for parts in self.axes for axis in parts])
        for pieces in product(*of_axis):
            sizes: list[int] = []
            strides: list[int] = []
            for piece, stride in zip(pieces, plain.strides, strict=True):
                sizes += piece.sizes
                strides += [stride] if len(piece.sizes) == 1 else [stride * piece.sizes[1], stride]
            corner: _Index = (*(slice(piece.first, None) for piece in pieces), ...)
            places: _Index = (*(part for piece in pieces for part in piece.slices), ...)
            yield as_strided(plain[corner], sizes, strides), moved[places]


class _Piece(NamedTuple):
    """A part of a plain axis: its offset, the slices of the device's axes, and their sizes."""

    first: int
    slices: tuple[slice, ...]
    sizes: Shape


def _pieces(first_in_device: int, count: int, block: int) -> list[_Piece]:
    """The part before the first whole block, the whole blocks, and the part after them."""
    pieces = []
    done = 0
    while done < count:
        outer, inner = divmod(first_in_device + done, block)
        left = count - done
        if inner or left < block:
            size = min(block - inner, left)
            pieces.append(_Piece(done, (slice(outer, outer + 1), slice(inner, inner + size)), (1, size)))
        else:
            blocks = left // block
            size = blocks * block
            pieces.append(_Piece(done, (slice(outer, outer + blocks), slice(0, block)), (blocks, block)))
        done += size
    return pieces
