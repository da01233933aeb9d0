"""C1HWNCoC0: weights of depthwise convolutions.

Channel c of (N, C, H, W) is in block c // C0 of (C1, H, W, N, Co, C0), where Co = C0, on the diagonal: at index c % C0 of both.
All elements off the diagonal are zero, so that the matrix unit multiplies each channel only by its own weight.

This is the usual definition, which no dump of a real device has confirmed.
"""

from __future__ import annotations

from opdump.errors import FormatShapeError
from opdump.formats.blocks import Blocks
from opdump.formats.device_format import DeviceFormat, ceil_div, require_rank, require_same
from opdump.formats.reading import Array, Shape


def _plain_shape(array: Array, shape: Shape | None, _groups: int) -> Shape:
    """(N, C, H, W) of (C1, H, W, N, Co, C0); without a shape C is C1 * C0."""
    require_rank(array, "C1HWNCoC0", "C1 H W N Co C0")
    c1, h, w, n, co, c0 = array.shape
    if co != c0:
        raise FormatShapeError(f"the last two dimensions of C1HWNCoC0 are equal; found {array.shape}")
    if shape is None:
        shape = (n, c1 * c0, h, w)
    require_same(array.shape, _device_shape(shape, c0), "C1HWNCoC0", "NCHW", shape)
    return shape


def _device_shape(shape: Shape, c0: int, _groups: int = 1) -> Shape:
    n, c, h, w = shape
    return ceil_div(c, c0), h, w, n, c0, c0


def _place(array: Array, _shape: Shape, _groups: int) -> Blocks:
    diagonal = array.diagonal(axis1=4, axis2=5)
    diagonal.setflags(write=array.flags.writeable)  # numpy returns a read-only diagonal
    return Blocks(diagonal, ((3,), (0, 4), (1,), (2,)))  # (C1, H, W, N, C0)


C1HWNCOC0 = DeviceFormat("C1HWNCoC0", "NCHW", _plain_shape, _device_shape, _place)
