"""NC1HWC0 and NC1HWC0_C04: images with the channels in blocks.

Channel c of (N, C, H, W) lies in block c // C0 at place c % C0 of (N, C1, H, W, C0). C0 is 16 for float16, 32 for int8,
8 or 16 for float32: it is read from the array. In NC1HWC0_C04 it is 4.

NC1HWC0_C04 is the usual definition, which no dump of a real device has confirmed.
"""

from __future__ import annotations

from opdump.formats.blocks import Blocks
from opdump.formats.device_format import DeviceFormat, ceil_div, require_rank, require_same
from opdump.formats.reading import Array, Shape


def _plain_shape(array: Array, shape: Shape | None, _groups: int) -> Shape:
    """(N, C, H, W) of (N, C1, H, W, C0); without a shape C is C1 * C0."""
    require_rank(array, "NC1HWC0", "N C1 H W C0")
    n, c1, h, w, c0 = array.shape
    if shape is None:
        shape = (n, c1 * c0, h, w)
    require_same(array.shape, _device_shape(shape, c0), "NC1HWC0", "NCHW", shape)
    return shape


def _device_shape(shape: Shape, c0: int, _groups: int = 1) -> Shape:
    n, c, h, w = shape
    return n, ceil_div(c, c0), h, w, c0


def _place(array: Array, _shape: Shape, _groups: int) -> Blocks:
    return Blocks(array, ((0,), (1, 4), (2,), (3,)))


NC1HWC0 = DeviceFormat("NC1HWC0", "NCHW", _plain_shape, _device_shape, _place)
NC1HWC0_C04 = DeviceFormat("NC1HWC0_C04", "NCHW", _plain_shape, _device_shape, _place, c0=4)
