"""FRACTAL_Z and FRACTAL_Z_3D: weights of convolutions, in blocks of 16 filters by C0 channels.

Weight (n, c, h, w) of (N, C, H, W) is at [(c // C0 * H + h) * W + w, n // N0, n % N0, c % C0] of
(C1 * H * W, N1, N0, C0); in FRACTAL_Z_3D, (n, c, d, h, w) is at [((d * C1 + c // C0) * H + h) * W + w, ...] of
(D * C1 * H * W, N1, N0, C0).

With groups, C is the number of channels of one group and N the number of filters of all. E groups share blocks, which reduces padding:

    E = min(lcm(lcm(C, C0) / C, lcm(N / groups, N0) / (N / groups)), groups)

Group g is in share g // E, the outermost axis, at index g % E of it: its channels begin at channel (g % E) * C of
the share, its filters at filter (g % E) * N / groups, and all other elements are zero. The shape of the whole is
(shares * [D *] C1 * H * W, N1, N0, C0), with C1 and N1 of E groups.

The formula of msaccucmp lets shares overwrite each other (docs/formats.md#formats). FRACTAL_Z_3D is the usual definition, which
no dump of a real device has confirmed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from opdump.errors import FormatShapeError
from opdump.formats.blocks import Blocks
from opdump.formats.device_format import CUBE, DeviceFormat, ceil_div, require_rank, require_same
from opdump.formats.reading import Array, Loop, Shape


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


def _place(array: Array, shape: Shape, groups: int) -> _Groups:
    n, c, *space = shape
    _, n1, n0, c0 = array.shape
    sharing = _sharing(n, c, n0, c0, groups)
    *depth, h, w = space
    apart = array.reshape(sharing.shares, *depth, sharing.c1, h, w, n1, n0, c0)
    return _Groups(apart, sharing.together, n // groups, c)


def _in_blocks(shape: Shape, n0: int, c0: int, groups: int) -> Shape:
    n, c, *space = shape
    sharing = _sharing(n, c, n0, c0, groups)
    return sharing.shares * sharing.c1 * math.prod(space), sharing.n1, n0, c0


def _device_shape(shape: Shape, c0: int, groups: int) -> Shape:
    return _in_blocks(shape, CUBE, c0, groups)


def _plain_shape_3d(array: Array, shape: Shape | None, groups: int) -> Shape:
    """(N, C, D, H, W) of (D * C1 * H * W, N1, N0, C0): the shape is needed to separate C1 from D, H and W."""
    return _required(array, shape, groups, "FRACTAL_Z_3D", "NCDHW", "D * C1 * H * W")


def _plain_shape(array: Array, shape: Shape | None, groups: int) -> Shape:
    """(N, C, H, W) of (C1 * H * W, N1, N0, C0): the shape is needed to separate C1 from H and W."""
    return _required(array, shape, groups, "FRACTAL_Z", "NCHW", "C1 * H * W")


def _required(array: Array, shape: Shape | None, groups: int, name: str, plain: str, first_axis: str) -> Shape:
    require_rank(array, name, f"{first_axis.replace(' ', '')} N1 N0 C0")
    if shape is None:
        raise FormatShapeError(
            f"{name} with its first axis of {first_axis} = {array.shape[0]} does not say what H and W are. "
            "Give the tensor's original shape"
        )
    _, _, n0, c0 = array.shape
    require_same(array.shape, _in_blocks(shape, n0, c0, groups), name, plain, shape, groups)
    return shape


FRACTAL_Z = DeviceFormat("FRACTAL_Z", "NCHW", _plain_shape, _device_shape, _place)
FRACTAL_Z_3D = DeviceFormat("FRACTAL_Z_3D", "NCDHW", _plain_shape_3d, _device_shape, _place)
