"""C1HWNCoC0: weights of depthwise convolutions.

Channel c of (N, C, H, W) lies in block c // C0 of (C1, H, W, N, Co, C0), where Co = C0, on the diagonal: at place c % C0
of both. Everything beside the diagonal is zero, so that the matrix unit multiplies each channel by its own weight alone.

Source: the usual definition of the format. The specification has none, and no dump of a real device has confirmed it.
"""

from __future__ import annotations

from opdump.errors import FormatShapeError
from opdump.formats.blocks import from_blocks, into_blocks
from opdump.formats.device_format import Array, DeviceFormat, Memory, Shape, ceil_div, require_rank, require_same, text
from opdump.formats.reading import Reading

# Of the diagonal: (C1, H, W, N, C0).
_AXES = ((3,), (0, 4), (1,), (2,))


def to_nchw(array: Array, shape: Shape | None, _groups: int, memory: Memory, reading: Reading | None) -> Array:
    """(C1, H, W, N, Co, C0) to (N, C, H, W); without a shape C is C1 * C0."""
    require_rank(array, "C1HWNCoC0", "C1 H W N Co C0")
    c1, h, w, n, co, c0 = array.shape
    if co != c0:
        raise FormatShapeError(f"the last two dimensions of C1HWNCoC0 are equal; found {text(array.shape)}")
    if shape is None:
        shape = (n, c1 * c0, h, w)
    require_same(array.shape, _device_shape(shape, c0), "C1HWNCoC0", "NCHW", shape)
    plain = memory(shape, array.dtype)
    from_blocks(_diagonal(array), _AXES, plain, reading=reading)
    return plain


def from_nchw(array: Array, c0: int, _groups: int, memory: Memory, reading: Reading | None) -> Array:
    """(N, C, H, W) to (C1, H, W, N, Co, C0)."""
    device = memory(_device_shape(array.shape, c0), array.dtype)
    diagonal = _diagonal(device)
    diagonal.setflags(write=True)  # numpy gives a diagonal to read
    into_blocks(array, diagonal, _AXES, reading=reading)
    return device


def _diagonal(device: Array) -> Array:
    return device.diagonal(axis1=4, axis2=5)


def _device_shape(shape: Shape, c0: int) -> Shape:
    n, c, h, w = shape
    return ceil_div(c, c0), h, w, n, c0, c0


C1HWNCOC0 = DeviceFormat("C1HWNCoC0", "NCHW", to_nchw, from_nchw)
