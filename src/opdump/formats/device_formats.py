"""The device formats, each with the positions of the elements of a tensor, and the registry of formats."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple

from opdump.errors import FormatShapeError
from opdump.formats.placement import (
    CUBE,
    Array,
    Blocks,
    DeviceFormat,
    Loop,
    Shape,
    ceil_div,
    require_rank,
    require_same,
)

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
        require_same(array.shape, device_shape(shape, sizes["C0"]), name, plain, shape)
        return shape

    def device_shape(shape: Shape, c0: int, _groups: int = 1) -> Shape:
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
    require_same(array.shape, _depthwise_device_shape(shape, c0), "C1HWNCoC0", "NCHW", shape)
    return shape


def _depthwise_device_shape(shape: Shape, c0: int, _groups: int = 1) -> Shape:
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
    expected = _nz_in_blocks(shape, m0, c0)
    if math.prod(expected[:-4]) != math.prod(leading):
        require_same(array.shape, expected, "FRACTAL_NZ", "ND", shape)
    require_same(array.shape[-4:], expected[-4:], "FRACTAL_NZ", "ND", shape)
    return shape


def _nz_device_shape(shape: Shape, c0: int, _groups: int) -> Shape:
    return _nz_in_blocks(shape, CUBE, c0)


def _nz_in_blocks(shape: Shape, m0: int, c0: int) -> Shape:
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


def _z_in_blocks(shape: Shape, n0: int, c0: int, groups: int) -> Shape:
    n, c, *space = shape
    sharing = _sharing(n, c, n0, c0, groups)
    return sharing.shares * sharing.c1 * math.prod(space), sharing.n1, n0, c0


def _z_device_shape(shape: Shape, c0: int, groups: int) -> Shape:
    return _z_in_blocks(shape, CUBE, c0, groups)


def _z_plain_shape_3d(array: Array, shape: Shape | None, groups: int) -> Shape:
    """(N, C, D, H, W) of (D * C1 * H * W, N1, N0, C0): the shape is needed to separate C1 from D, H and W."""
    return _required(array, shape, groups, "FRACTAL_Z_3D", "NCDHW", "D * C1 * H * W")


def _z_plain_shape(array: Array, shape: Shape | None, groups: int) -> Shape:
    """(N, C, H, W) of (C1 * H * W, N1, N0, C0): the shape is needed to separate C1 from H and W."""
    return _required(array, shape, groups, "FRACTAL_Z", "NCHW", "C1 * H * W")


def _required(array: Array, shape: Shape | None, groups: int, name: str, plain: str, first_axis: str) -> Shape:
    require_rank(array, name, f"{first_axis.replace(' ', '')} N1 N0 C0")
    if shape is None:
        raise FormatShapeError(
            f"{name} with its first axis of {first_axis} = {array.shape[0]} does not determine H and W. "
            "Give the tensor's original shape"
        )
    _, _, n0, c0 = array.shape
    require_same(array.shape, _z_in_blocks(shape, n0, c0, groups), name, plain, shape, groups)
    return shape


FRACTAL_Z = DeviceFormat("FRACTAL_Z", "NCHW", _z_plain_shape, _z_device_shape, _z_place)
FRACTAL_Z_3D = DeviceFormat("FRACTAL_Z_3D", "NCDHW", _z_plain_shape_3d, _z_device_shape, _z_place)


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
    require_same(array.shape, _c04_in_blocks(shape, n0, c0), "FRACTAL_Z_C04", "NCHW", shape)
    return shape


def _c04_device_shape(shape: Shape, c0: int, _groups: int) -> Shape:
    return _c04_in_blocks(shape, CUBE, c0)


def _c04_in_blocks(shape: Shape, n0: int, c0: int) -> Shape:
    n, c, h, w = shape
    if c > _CHANNELS:
        raise FormatShapeError(f"FRACTAL_Z_C04 holds at most {_CHANNELS} channels; found {c} in {shape}")
    if c0 % _CHANNELS:
        raise FormatShapeError(f"blocks of FRACTAL_Z_C04 hold whole places of {_CHANNELS} channels; found C0 = {c0}")
    return ceil_div(h * w * _CHANNELS, c0), ceil_div(n, n0), n0, c0


FRACTAL_Z_C04 = DeviceFormat("FRACTAL_Z_C04", "NCHW", _c04_plain_shape, _c04_device_shape, _c04_place)


# The registry. A new device format is one line here.

PLAIN_FORMATS: Final = (
    *("NCHW", "NHWC", "HWCN", "CHWN"),
    *("NCDHW", "NDHWC", "DHWCN", "DHWNC"),
    *("NC", "CN", "ND"),
)
"""Formats without blocks or padding. ND is the tensor's own shape, whatever its axes mean."""


def _by_name(formats: Iterable[DeviceFormat]) -> Mapping[str, DeviceFormat]:
    table: dict[str, DeviceFormat] = {}
    for known in formats:
        if known.name in table or known.name in PLAIN_FORMATS:
            raise ValueError(f"the format {known.name} is in the registry already")
        table[known.name] = known
    return MappingProxyType(table)


DEVICE_FORMATS: Final = _by_name(
    [
        NC1HWC0,
        NC1HWC0_C04,
        NDC1HWC0,
        C1HWNCOC0,
        FRACTAL_Z,
        FRACTAL_Z_3D,
        FRACTAL_Z_C04,
        FRACTAL_NZ,
    ]
)
FORMATS: Final = (*PLAIN_FORMATS, *DEVICE_FORMATS)
