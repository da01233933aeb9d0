"""FRACTAL_Z and FRACTAL_Z_3D: weights of convolutions, in blocks of 16 filters by C0 channels.

Weight (n, c, h, w) of (N, C, H, W) lies at [(c // C0 * H + h) * W + w, n // N0, n % N0, c % C0] of
(C1 * H * W, N1, N0, C0); in FRACTAL_Z_3D, (n, c, d, h, w) lies at [((d * C1 + c // C0) * H + h) * W + w, ...] of
(D * C1 * H * W, N1, N0, C0).

With groups, where C is that of one group and N that of all, E groups at a time share blocks, so that little is padding:

    E = min(lcm(lcm(C, C0) / C, lcm(N / groups, N0) / (N / groups)), groups)

Group g stands in share g // E, the outermost axis, at place g % E of it: its channels begin at channel (g % E) * C of
the share, its filters at filter (g % E) * N / groups, and what lies elsewhere is zero. The shape of the whole is
(shares * [D *] C1 * H * W, N1, N0, C0), with C1 and N1 of E groups.

Source: section 3 of the description of msaccucmp, whose own formula lets shares overwrite each other. FRACTAL_Z_3D is the usual
definition, which no dump of a real device has confirmed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from opdump.errors import FormatShapeError
from opdump.formats.blocks import from_blocks, into_blocks
from opdump.formats.device_format import (
    CUBE,
    Array,
    DeviceFormat,
    Memory,
    Shape,
    ceil_div,
    require_rank,
    require_same,
)
from opdump.formats.reading import Box, Loop, Reading, boxes, loops_of

# Of one share with its loops apart: (D, C1, H, W, N1, N0, C0), to (N, C, D, H, W).
_AXES = ((4, 5), (1, 6), (0,), (2,), (3,))


class _Shares(NamedTuple):
    """How groups share blocks: `together` of them in each of `shares`, which have `c1` and `n1` blocks."""

    shares: int
    together: int
    c1: int
    n1: int


def _shares(n: int, c: int, n0: int, c0: int, groups: int) -> _Shares:
    if n % groups:
        raise FormatShapeError(f"{n} filters cannot be parted in {groups} groups. Give the number of groups")
    filters = n // groups
    if groups == 1 or not filters or not c:
        return _Shares(groups, 1, ceil_div(c, c0), ceil_div(filters, n0))
    together = min(math.lcm(math.lcm(c, c0) // c, math.lcm(filters, n0) // filters), groups)
    return _Shares(ceil_div(groups, together), together, ceil_div(together * c, c0), ceil_div(together * filters, n0))


def _parts(plain: Array, device: Array, groups: int, box: Box) -> Iterator[tuple[Array, Array, Shape]]:
    """Of each group that has filters in the box: its weights there, its share with the loops apart, where in it they begin."""
    n, c, *_ = plain.shape
    sharing = _shares(n, c, device.shape[2], device.shape[3], groups)
    apart = _loops_apart(plain, device, sharing)
    filters = n // groups
    (first, last), *others = box
    for group in range(first // filters, ceil_div(last, filters)):
        share, place = divmod(group, sharing.together)
        start, stop = max(first, group * filters), min(last, (group + 1) * filters)
        within = (slice(start, stop), *(slice(*limits) for limits in others))
        (channel, _), *rest = others
        in_share = (start - (group - place) * filters, place * c + channel, *(at for at, _ in rest))
        yield plain[within], apart[share], in_share


def _loops_apart(plain: Array, device: Array, sharing: _Shares) -> Array:
    _, _, d, h, w = plain.shape
    return device.reshape(sharing.shares, d, sharing.c1, h, w, *device.shape[1:])


def _loops_of_device(plain: Array, device: Array, groups: int) -> list[Loop]:
    """Group after group, and where one is too large the loops of a share."""
    n, c, *_ = plain.shape
    n0, c0 = device.shape[2:]
    sharing = _shares(n, c, n0, c0, groups)
    _, of_d, of_c1, of_h, of_w, of_n1, _, _ = _loops_apart(plain, device, sharing).strides
    of_group = plain.shape[2] * min(sharing.c1, ceil_div(c, c0) + 1) * of_c1
    return [
        *(Loop(0, n // groups, of_group), Loop(2, 1, of_d), Loop(1, c0, of_c1)),
        *(Loop(3, 1, of_h), Loop(4, 1, of_w), Loop(0, n0, of_n1)),
    ]


def _device_shape(shape: Shape, n0: int, c0: int, groups: int) -> Shape:
    n, c, d, h, w = shape
    sharing = _shares(n, c, n0, c0, groups)
    return sharing.shares * d * sharing.c1 * h * w, sharing.n1, n0, c0


def to_ncdhw(array: Array, shape: Shape | None, groups: int, memory: Memory, reading: Reading | None) -> Array:
    """(D * C1 * H * W, N1, N0, C0) to (N, C, D, H, W): the shape is needed, it alone tells C1 from D, H and W."""
    needed = _required(array, "FRACTAL_Z_3D", "D * C1 * H * W", shape)
    return _to_plain(array, needed, groups, memory, reading, "FRACTAL_Z_3D", "NCDHW")


def to_nchw(array: Array, shape: Shape | None, groups: int, memory: Memory, reading: Reading | None) -> Array:
    """(C1 * H * W, N1, N0, C0) to (N, C, H, W): the shape is needed, it alone tells C1 from H and W."""
    n, c, h, w = _required(array, "FRACTAL_Z", "C1 * H * W", shape)

    def with_depth(shape: Shape, dtype: np.dtype[Any]) -> Array:
        return memory((*shape[:2], *shape[3:]), dtype)[:, :, None]

    return _to_plain(array, (n, c, 1, h, w), groups, with_depth, reading, "FRACTAL_Z", "NCHW")[:, :, 0]


def _required(array: Array, name: str, first_axis: str, shape: Shape | None) -> Shape:
    require_rank(array, name, f"{first_axis.replace(' ', '')} N1 N0 C0")
    if shape is None:
        raise FormatShapeError(
            f"{name} with its first axis of {first_axis} = {array.shape[0]} does not say what H and W are. "
            "Give the tensor's original shape"
        )
    return shape


def _to_plain(
    array: Array, shape: Shape, groups: int, memory: Memory, reading: Reading | None, name: str, plain_name: str
) -> Array:
    n0, c0 = array.shape[2:]
    logical = shape if len(plain_name) == 5 else (*shape[:2], *shape[3:])
    require_same(array.shape, _device_shape(shape, n0, c0, groups), name, plain_name, logical, groups)
    plain = memory(shape, array.dtype)
    if plain.size:
        for box in boxes(plain.shape, _loops_of_device(plain, array, groups), reading):
            for weights, share, starts in _parts(plain, array, groups, box):
                from_blocks(share, _AXES, weights, starts)
    return plain


def from_ncdhw(array: Array, c0: int, groups: int, memory: Memory, reading: Reading | None) -> Array:
    """(N, C, D, H, W) to (D * C1 * H * W, N1, N0, C0)."""
    device = memory(_device_shape(array.shape, CUBE, c0, groups), array.dtype)
    if array.size:
        for box in boxes(array.shape, loops_of(array), reading):
            for weights, share, starts in _parts(array, device, groups, box):
                into_blocks(weights, share, _AXES, starts)
    return device


def from_nchw(array: Array, c0: int, groups: int, memory: Memory, reading: Reading | None) -> Array:
    """(N, C, H, W) to (C1 * H * W, N1, N0, C0)."""
    return from_ncdhw(array[:, :, None], c0, groups, memory, reading)


FRACTAL_Z = DeviceFormat("FRACTAL_Z", "NCHW", to_nchw, from_nchw)
FRACTAL_Z_3D = DeviceFormat("FRACTAL_Z_3D", "NCDHW", to_ncdhw, from_ncdhw)
