"""NDC1HWC0: volumes with the channels in blocks, as NC1HWC0 has them for images.

Channel c of (N, C, D, H, W) lies in block c // C0 at place c % C0 of (N, D, C1, H, W, C0).
"""

from __future__ import annotations

from opdump.formats.blocks import Blocks
from opdump.formats.device_format import DeviceFormat, ceil_div, require_rank, require_same
from opdump.formats.reading import Array, Shape


def _plain_shape(array: Array, shape: Shape | None, _groups: int) -> Shape:
    """(N, C, D, H, W) of (N, D, C1, H, W, C0); without a shape C is C1 * C0."""
    require_rank(array, "NDC1HWC0", "N D C1 H W C0")
    n, d, c1, h, w, c0 = array.shape
    if shape is None:
        shape = (n, c1 * c0, d, h, w)
    require_same(array.shape, _device_shape(shape, c0), "NDC1HWC0", "NCDHW", shape)
    return shape


def _device_shape(shape: Shape, c0: int, _groups: int = 1) -> Shape:
    n, c, d, h, w = shape
    return n, d, ceil_div(c, c0), h, w, c0


def _place(array: Array, _shape: Shape, _groups: int) -> Blocks:
    return Blocks(array, ((0,), (2, 5), (1,), (3,), (4,)))


NDC1HWC0 = DeviceFormat("NDC1HWC0", "NCDHW", _plain_shape, _device_shape, _place)
