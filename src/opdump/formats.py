"""Converts tensors between the formats of Ascend devices and those of frameworks.

convert_format(array, "NC1HWC0", "NCHW", shape=(1, 3, 224, 224))     # (1, 1, 224, 224, 16): the padding is cut
convert_format(weights, "NCHW", "FRACTAL_Z", groups=32)              # zeros where the device has padding

A device format is one section, which defines the position of the elements of a tensor, and one line in the registry
`DEVICE_FORMATS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from types import EllipsisType
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from opdump.errors import FormatShapeError, UnknownFormatError
from opdump.kernels import copy_elements

# Moves elements between a plain tensor and an array of a device format, or between two such arrays.
#
# With a `Reading`, it works box by box, in the memory order of the source. Between two arrays of devices, each box is a separate
# array, so that the whole plain tensor is never in memory.

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
    def __call__(self, shape: Shape, rows: int, c0: int, groups: int, /) -> Shape:
        """The shape of an array with a tensor of `shape` in blocks of `rows` (if the format has such) by `c0` channels. Raises
        FormatShapeError if there is none.
        """


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


# The device formats, each with the positions of the elements of a tensor, and the registry of formats.

# NC1HWC0, NC1HWC0_C04 and NDC1HWC0: images and volumes with the channels in blocks.
#
# Channel c of (N, C, H, W) is in block c // C0 at index c % C0 of (N, C1, H, W, C0), and of (N, C, D, H, W) in (N, D, C1, H, W,
# C0). C0 is 16 for float16, 32 for int8, 8 or 16 for float32: it is read from the array. In NC1HWC0_C04 it is 4: the usual
# definition, which no dump of a real device has confirmed.


def _in_blocks(name: str, plain: str, device: str) -> DeviceFormat:
    """The format with the axes of `device`, such as `N C1 H W C0`, for tensors with the axes of `plain`."""
    axes = device.split()
    places = [(axes.index("C1"), axes.index("C0")) if axis == "C" else (axes.index(axis),) for axis in plain]

    def plain_shape(array: Array, shape: Shape | None, _groups: int) -> Shape:
        require_rank(array, name, device)
        sizes = dict(zip(axes, array.shape, strict=True))
        if shape is None:
            shape = tuple(sizes["C1"] * sizes["C0"] if axis == "C" else sizes[axis] for axis in plain)
        require_same(array.shape, device_shape(shape, CUBE, sizes["C0"]), name, plain, shape)
        return shape

    def device_shape(shape: Shape, _rows: int, c0: int, _groups: int = 1) -> Shape:
        sizes = dict(zip(plain, shape, strict=True))
        sizes |= {"C1": ceil_div(sizes["C"], c0), "C0": c0}
        return tuple(sizes[axis] for axis in axes)

    def place(array: Array, _shape: Shape, _groups: int) -> Blocks:
        return Blocks(array, places)

    return DeviceFormat(name, plain, plain_shape, device_shape, place)


NC1HWC0 = _in_blocks("NC1HWC0", "NCHW", "N C1 H W C0")
NC1HWC0_C04 = replace(NC1HWC0, name="NC1HWC0_C04", c0=4)
NDC1HWC0 = _in_blocks("NDC1HWC0", "NCDHW", "N D C1 H W C0")


# C1HWNCoC0: weights of depthwise convolutions.
#
# Channel c of (N, C, H, W) is in block c // C0 of (C1, H, W, N, Co, C0), where Co = C0, on the diagonal: at index c % C0 of both.
# All elements off the diagonal are zero, so that the matrix unit multiplies each channel only by its own weight.
#
# This is the usual definition, which no dump of a real device has confirmed.


def _depthwise_plain_shape(array: Array, shape: Shape | None, _groups: int) -> Shape:
    """(N, C, H, W) of (C1, H, W, N, Co, C0); without a shape C is C1 * C0."""
    require_rank(array, "C1HWNCoC0", "C1 H W N Co C0")
    c1, h, w, n, co, c0 = array.shape
    if co != c0:
        raise FormatShapeError(f"the last two dimensions of C1HWNCoC0 are equal; found {array.shape}")
    if shape is None:
        shape = (n, c1 * c0, h, w)
    require_same(array.shape, _depthwise_device_shape(shape, CUBE, c0), "C1HWNCoC0", "NCHW", shape)
    return shape


def _depthwise_device_shape(shape: Shape, _rows: int, c0: int, _groups: int = 1) -> Shape:
    n, c, h, w = shape
    return ceil_div(c, c0), h, w, n, c0, c0


def _depthwise_place(array: Array, _shape: Shape, _groups: int) -> Blocks:
    diagonal = array.diagonal(axis1=4, axis2=5)
    diagonal.setflags(write=array.flags.writeable)  # numpy returns a read-only diagonal
    return Blocks(diagonal, ((3,), (0, 4), (1,), (2,)))  # (C1, H, W, N, C0)


C1HWNCOC0 = DeviceFormat("C1HWNCoC0", "NCHW", _depthwise_plain_shape, _depthwise_device_shape, _depthwise_place)


# FRACTAL_NZ: matrices in blocks of 16 rows by C0 columns, block after block down the columns, each row by row.
#
# Element (m, n) of (..., M, N) is at (..., n // C0, m // M0, m % M0, n % C0) of (..., N1, M1, M0, C0). The leading axes are those
# of the tensor.


def _nz_plain_shape(array: Array, shape: Shape | None, _groups: int) -> Shape:
    """(..., M, N) of (..., N1, M1, M0, C0); without a shape M is M1 * M0 and N is N1 * C0.

    Leading axes of the shape may be split differently from those of the array; a shape of one axis (N,) counts as (1, N).
    """
    if array.ndim < 4 or 0 in array.shape[-2:]:
        raise FormatShapeError(
            f"a tensor in FRACTAL_NZ has the shape (..., N1, M1, M0, C0), blocks of at least one element; "
            f"found {array.shape}"
        )
    *leading, n1, m1, m0, c0 = array.shape
    if shape is None:
        return (*leading, m1 * m0, n1 * c0)
    expected = _nz_device_shape(shape, m0, c0)
    if math.prod(expected[:-4]) != math.prod(leading):
        require_same(array.shape, expected, "FRACTAL_NZ", "ND", shape)
    require_same(array.shape[-4:], expected[-4:], "FRACTAL_NZ", "ND", shape)
    return shape


def _nz_device_shape(shape: Shape, m0: int, c0: int, _groups: int = 1) -> Shape:
    *leading, m, n = _matrix(shape)
    return *leading, ceil_div(n, c0), ceil_div(m, m0), m0, c0


def _matrix(shape: Shape) -> Shape:
    return (1,) * (2 - len(shape)) + shape


def _nz_place(array: Array, shape: Shape, _groups: int) -> Blocks:
    matrices = array.reshape(*_matrix(shape)[:-2], *array.shape[-4:])
    leading = len(shape) - 2
    if leading < 0:  # one row; for a scalar, one element
        row = matrices[:, 0, 0]
        return Blocks(row, ((0, 1),)) if shape else Blocks(row[0, 0, ...], ())
    rows, columns = (leading + 1, leading + 2), (leading, leading + 3)
    return Blocks(matrices, (*((axis,) for axis in range(leading)), rows, columns))


FRACTAL_NZ = DeviceFormat("FRACTAL_NZ", "ND", _nz_plain_shape, _nz_device_shape, _nz_place)


# FRACTAL_Z and FRACTAL_Z_3D: weights of convolutions, in blocks of 16 filters by C0 channels.
#
# Weight (n, c, h, w) of (N, C, H, W) is at [(c // C0 * H + h) * W + w, n // N0, n % N0, c % C0] of
# (C1 * H * W, N1, N0, C0); in FRACTAL_Z_3D, (n, c, d, h, w) is at [((d * C1 + c // C0) * H + h) * W + w, ...] of
# (D * C1 * H * W, N1, N0, C0).
#
# With groups, C is the number of channels of one group and N the number of filters of all. To reduce padding, E groups share blocks; E is
# the smaller of lcm(lcm(C, C0) / C, lcm(N / groups, N0) / (N / groups)) and the number of groups.
#
# Group g is in share g // E, the outermost axis, at index g % E of it: its channels begin at channel (g % E) * C of
# the share, its filters at filter (g % E) * N / groups, and all other elements are zero. The shape of the whole is
# (shares * [D *] C1 * H * W, N1, N0, C0), with C1 and N1 of E groups.
#
# The formula of msaccucmp lets shares overwrite each other (docs/formats.md#formats). FRACTAL_Z_3D is the usual definition, which
# no dump of a real device has confirmed.


class _Sharing(NamedTuple):
    """How groups share blocks: `together` groups in each of `shares`, with `c1` and `n1` blocks."""

    shares: int
    together: int
    c1: int
    n1: int


def _sharing(n: int, c: int, n0: int, c0: int, groups: int) -> _Sharing:
    if n % groups:
        raise FormatShapeError(f"{n} filters are not divisible by {groups} groups. Give the number of groups")
    filters = n // groups
    if groups == 1 or not filters or not c:
        return _Sharing(groups, 1, ceil_div(c, c0), ceil_div(filters, n0))
    together = min(math.lcm(math.lcm(c, c0) // c, math.lcm(filters, n0) // filters), groups)
    return _Sharing(ceil_div(groups, together), together, ceil_div(together * c, c0), ceil_div(together * filters, n0))


@dataclass(frozen=True, slots=True)
class _Groups:
    """A placement in `shares`, the device's array with separate loops: (shares, [D,] C1, H, W, N1, N0, C0)."""

    shares: Array
    together: int
    """Number of groups in each share."""
    filters: int
    """Per group."""
    channels: int

    def share(self, number: int) -> Blocks:
        d = self.shares.ndim - 7
        return Blocks(
            self.shares[number], ((d + 3, d + 4), (d, d + 5), *((axis,) for axis in range(d)), (d + 1,), (d + 2,))
        )

    def loops(self) -> Sequence[Loop]:
        """One loop over the groups or, if a group is too large, the loops of a share."""
        *depth, c1 = self.shares.shape[1:-5]
        c0 = self.shares.shape[-1]
        # The blocks of one group, which are not adjacent if there is a depth.
        of_group = math.prod(depth) * min(c1, ceil_div(self.channels, c0) + 1) * self.shares.strides[-6]
        return (Loop(0, self.filters, of_group), *self.share(0).loops())

    def pairs(self, plain: Array, starts: Shape) -> Iterator[tuple[Array, Array]]:
        first, channel, *rest = starts
        last = first + plain.shape[0]
        for group in range(first // self.filters, ceil_div(last, self.filters)):
            share, place = divmod(group, self.together)
            start, stop = max(first, group * self.filters), min(last, (group + 1) * self.filters)
            in_share = (start - (group - place) * self.filters, place * self.channels + channel, *rest)
            yield from self.share(share).pairs(plain[start - first : stop - first], in_share)


def _z_place(array: Array, shape: Shape, groups: int) -> _Groups:
    n, c, *space = shape
    _, n1, n0, c0 = array.shape
    sharing = _sharing(n, c, n0, c0, groups)
    *depth, h, w = space
    apart = array.reshape(sharing.shares, *depth, sharing.c1, h, w, n1, n0, c0)
    return _Groups(apart, sharing.together, n // groups, c)


def _z_device_shape(shape: Shape, n0: int, c0: int, groups: int) -> Shape:
    n, c, *space = shape
    sharing = _sharing(n, c, n0, c0, groups)
    return sharing.shares * sharing.c1 * math.prod(space), sharing.n1, n0, c0


def _fractal_z(name: str, plain: str, first_axis: str) -> DeviceFormat:
    """The format whose first axis joins the axes in `first_axis`: the shape is needed to separate them."""

    def plain_shape(array: Array, shape: Shape | None, groups: int) -> Shape:
        require_rank(array, name, f"{first_axis.replace(' ', '')} N1 N0 C0")
        if shape is None:
            raise FormatShapeError(
                f"{name} with its first axis of {first_axis} = {array.shape[0]} does not determine H and W. "
                "Give the tensor's original shape"
            )
        _, _, n0, c0 = array.shape
        require_same(array.shape, _z_device_shape(shape, n0, c0, groups), name, plain, shape, groups)
        return shape

    return DeviceFormat(name, plain, plain_shape, _z_device_shape, _z_place)


FRACTAL_Z = _fractal_z("FRACTAL_Z", "NCHW", "C1 * H * W")
FRACTAL_Z_3D = _fractal_z("FRACTAL_Z_3D", "NCDHW", "D * C1 * H * W")


# FRACTAL_Z_C04: weights of convolutions of at most 4 channels, as of the first layer on images, without padding to C0.
#
# The weights of one filter are laid out by place and channel, K = (h * W + w) * 4 + c; weight (n, K) is at
# [K // C0, n // N0, n % N0, K % C0] of (K1, N1, N0, C0).
#
# This is the usual definition, which no dump of a real device has confirmed.

_CHANNELS = 4


@dataclass(frozen=True, slots=True)
class _Rows:
    """The placement of (N, C, H, W), with its rows one after another in `blocks`, the placement of (N, C, H * W)."""

    blocks: Blocks
    width: int

    def loops(self) -> Sequence[Loop]:
        """The loops of the blocks; the one along H * W is split into a loop over the rows in a block, and one within a row."""
        loops = []
        for axis, unit, span in self.blocks.loops():
            if axis == 2:
                rows = max(1, unit // self.width)
                loops += [Loop(2, rows, ceil_div(rows * self.width, unit) * span), Loop(3, unit, span)]
            else:
                loops.append(Loop(axis, unit, span))
        return loops

    def pairs(self, plain: Array, starts: Shape) -> Iterator[tuple[Array, Array]]:
        n, c, h, w = starts
        first = h * self.width + w
        *outer, rows, columns = plain.shape
        _, _, of_row, of_column = plain.strides
        if columns == self.width and of_row == columns * of_column:  # one long row; a view, as the strides allow it
            yield from self.blocks.pairs(plain.reshape(*outer, rows * columns), (n, c, first))
        else:
            for row in range(rows):
                yield from self.blocks.pairs(plain[:, :, row], (n, c, first + row * self.width))


def _c04_place(array: Array, shape: Shape, _groups: int) -> _Rows:
    k1, n1, n0, c0 = array.shape
    apart = array.reshape(k1, n1, n0, c0 // _CHANNELS, _CHANNELS)
    return _Rows(Blocks(apart, ((1, 2), (4,), (0, 3))), shape[3])


def _c04_plain_shape(array: Array, shape: Shape | None, _groups: int) -> Shape:
    """(N, C, H, W) of (K1, N1, N0, C0): the shape is needed."""
    require_rank(array, "FRACTAL_Z_C04", "K1 N1 N0 C0")
    if shape is None:
        raise FormatShapeError("FRACTAL_Z_C04 does not determine C, H and W. Give the tensor's original shape")
    _, _, n0, c0 = array.shape
    require_same(array.shape, _c04_device_shape(shape, n0, c0), "FRACTAL_Z_C04", "NCHW", shape)
    return shape


def _c04_device_shape(shape: Shape, n0: int, c0: int, _groups: int = 1) -> Shape:
    n, c, h, w = shape
    if c > _CHANNELS:
        raise FormatShapeError(f"FRACTAL_Z_C04 holds at most {_CHANNELS} channels; found {c} in {shape}")
    if c0 % _CHANNELS:
        raise FormatShapeError(f"C0 of FRACTAL_Z_C04 must be a multiple of {_CHANNELS}; found {c0}")
    return ceil_div(h * w * _CHANNELS, c0), ceil_div(n, n0), n0, c0


FRACTAL_Z_C04 = DeviceFormat("FRACTAL_Z_C04", "NCHW", _c04_plain_shape, _c04_device_shape, _c04_place)


# The registry. A new device format is one line here.

PLAIN_FORMATS: Final = (
    *("NCHW", "NHWC", "HWCN", "CHWN"),
    *("NCDHW", "NDHWC", "DHWCN", "DHWNC"),
    *("NC", "CN", "ND"),
)
"""Formats without blocks or padding. ND is the tensor's own shape, whatever its axes mean."""


DEVICE_FORMATS: Final[Mapping[str, DeviceFormat]] = {
    each.name: each
    for each in (NC1HWC0, NC1HWC0_C04, NDC1HWC0, C1HWNCOC0, FRACTAL_Z, FRACTAL_Z_3D, FRACTAL_Z_C04, FRACTAL_NZ)
}
FORMATS: Final = (*PLAIN_FORMATS, *DEVICE_FORMATS)


# Converts a tensor from one format to another.


def can_convert(source: str, target: str) -> bool:
    """Whether `convert_format` can convert from one format to the other."""
    if source not in FORMATS or target not in FORMATS:
        return False
    plain, wanted = _plain_of(source), _plain_of(target)
    return source == target or "ND" in (plain, wanted) or sorted(plain) == sorted(wanted)


def convert_format(
    array: Array,
    source: str,
    target: str,
    *,
    shape: Shape | None = None,
    groups: int = 1,
    c0: int | None = None,
    out: Array | None = None,
    reading: Reading | None = None,
) -> Array:
    """The elements of a tensor in another format: `(2, 2, 8, 8, 16)` of NC1HWC0 as `(2, 19, 8, 8)` of NCHW.

    `array` has the shape of `source`, the result that of `target`; the result may be a view. If `out`, a C-contiguous array of
    the result's shape and dtype, is given, the elements and zeros for padding are written there, and `out` is returned. Reused
    memory is written faster than new memory. `reading` is called after each part of the array has been read, if either
    format is a device's, so that pages of a mapped file can be released.

    `shape` is the tensor's own shape, in the order of a plain target, otherwise in the order of NCHW, NCDHW or, for FRACTAL_NZ,
    of the source. It removes the padding; without it, padding is kept. FRACTAL_Z requires it. Between plain formats, and into a
    device format, it has no effect but must be right. `groups` is the number of groups of a grouped convolution (FRACTAL_Z,
    FRACTAL_Z_3D; ignored elsewhere); 0, as in a dump file, means none. `c0` is the number of channels in a block of a device's
    target; the default is 16, for any dtype, and 4 for NC1HWC0_C04.

    Raises UnknownFormatError if there is no such format or conversion; FormatShapeError if the array or the target shape is
    impossible, a shape is needed, or `out` has another; and ValueError if `out` has another dtype, is read-only, is not
    C-contiguous, or overlaps the elements of `array`. `out` is then unchanged.
    """
    _require_known(source, target)
    if out is not None:
        _require_writable(out, array)
    if groups < 0 or (c0 is not None and c0 < 1):
        raise FormatShapeError(f"groups and c0 must be at least 1; found groups={groups}, c0={c0}")
    groups = groups or 1
    wanted = None if shape is None else tuple(int(size) for size in shape)
    if source == target:
        return _filled(_same(array, source, wanted), out)
    order, here, there = plain_shapes(array, source, target, wanted, groups)
    from_device, to_device = DEVICE_FORMATS.get(source), DEVICE_FORMATS.get(target)
    if to_device is None:
        if from_device is None:
            return _filled(array.transpose(order), out)
        made = _for_plain(there, array.dtype, out)
        if made.size:
            # Its axes are in the memory order of the target.
            read_elements(from_device.place(array, here, groups), made.transpose(np.argsort(order)), reading)
        return made
    made = _for_device(
        to_device.device_shape(there, CUBE, to_device.c0 if c0 is None else c0, groups), there, array.dtype, out
    )
    if 0 in there:
        return made
    place = to_device.place(made, there, groups)
    if from_device is None:
        write_elements(array.transpose(order), place, reading)
    else:
        move_elements(from_device.place(array, here, groups), place, there, array.dtype, reading)
    return made


def _require_writable(out: Array, array: Array) -> None:
    if not out.flags.c_contiguous:
        raise ValueError(f"out is not C-contiguous: it has the shape {out.shape} and the strides {out.strides}")
    if not out.flags.writeable:
        raise ValueError("out is read-only")
    if out.dtype != array.dtype:
        raise ValueError(f"out has elements of {out.dtype}; those of the tensor are {array.dtype}")
    if np.may_share_memory(out, array):
        raise ValueError("out overlaps the elements of the tensor. Use separate memory")


def _require_shape(out: Array, shape: Shape) -> None:
    if out.shape != shape:
        raise FormatShapeError(f"out has the shape {out.shape}; the result has {shape}")


def _filled(result: Array, out: Array | None) -> Array:
    """The elements in `out`, if there is one."""
    if out is None:
        return result
    _require_shape(out, result.shape)
    copy_elements(result, out)
    return out


def _for_plain(shape: Shape, dtype: np.dtype[Any], out: Array | None) -> Array:
    """Memory for a plain format, of which every element will be written."""
    if out is None:
        return np.empty(shape, dtype)
    _require_shape(out, shape)
    return out


def _for_device(shape: Shape, of_plain: Shape, dtype: np.dtype[Any], out: Array | None) -> Array:
    """Memory for a device format, with zeros for the padding."""
    require_possible(shape, dtype)
    if out is None:
        return np.zeros(shape, dtype)
    _require_shape(out, shape)
    if out.size != math.prod(of_plain):
        out.fill(0)
    return out


def _same(array: Array, name: str, wanted: Shape | None) -> Array:
    if wanted is not None and wanted != array.shape:
        raise FormatShapeError(f"the tensor is in {name} already and has the shape {array.shape}, not {wanted}")
    return array


class PlainShapes(NamedTuple):
    """The shapes of a tensor before and after a conversion, as it would be in plain formats."""

    order: tuple[int, ...]
    """The axis of `here` for each axis of `there`."""
    here: Shape
    there: Shape


def plain_shapes(array: Array, source: str, target: str, shape: Shape | None, groups: int = 1) -> PlainShapes:
    """The plain shapes of a tensor in the format `source`, whose own shape is as in `convert_format`.

    Raises FormatShapeError if the array or the shape is impossible.
    """
    plain, plain_target = plain_axes(source, target), plain_axes(target, source)
    order = tuple(map(plain.index, plain_target)) if plain != plain_target else None
    if shape is not None:
        require_plain_shape(shape, plain_target)
        require_possible(shape, array.dtype)
    if source in DEVICE_FORMATS:
        in_order = (
            shape if shape is None or order is None else tuple(shape[order.index(axis)] for axis in range(len(plain)))
        )
        here = DEVICE_FORMATS[source].plain_shape(array, in_order, groups)
    else:
        here = array.shape
    require_plain_shape(here, plain)
    order = tuple(range(len(here))) if order is None else order
    there = tuple(here[axis] for axis in order)
    if shape is not None and there != shape:
        raise FormatShapeError(
            f"the tensor of the shape {array.shape} in {source} has the shape {there} in {plain_target}, not {shape}"
        )
    return PlainShapes(order, here, there)


def plain_axes(name: str, other: str) -> str:
    """The plain format of a format; if that is ND, the plain format of the other side of the conversion."""
    plain = _plain_of(name)
    return _plain_of(other) if plain == "ND" else plain


def _plain_of(name: str) -> str:
    return DEVICE_FORMATS[name].plain if name in DEVICE_FORMATS else name


def _require_known(source: str, target: str) -> None:
    for name in (source, target):
        if name not in FORMATS:
            raise UnknownFormatError(f"no format is called {name!r}; these are known: {', '.join(FORMATS)}")
    if not can_convert(source, target):
        targets = ", ".join(name for name in FORMATS if name != source and can_convert(source, name))
        raise UnknownFormatError(f"{source} cannot be converted to {target}; it can be to: {targets}")
