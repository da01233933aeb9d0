"""NC1HWC0 and NC1HWC0_C04: images with the channels in blocks.

Channel c of (N, C, H, W) lies in block c // C0 at place c % C0 of (N, C1, H, W, C0). C0 is 16 for float16, 32 for int8,
8 or 16 for float32: it is read from the array. In NC1HWC0_C04 it is 4.

Source: section 3 of the description of msaccucmp; of NC1HWC0_C04 the usual definition, which no dump of a real device has
confirmed.
"""

from __future__ import annotations

from opdump.formats.blocks import from_blocks, into_blocks
from opdump.formats.device_format import Array, DeviceFormat, Memory, Shape, ceil_div, require_rank, require_same
from opdump.formats.reading import Reading

_AXES = ((0,), (1, 4), (2,), (3,))


def to_nchw(array: Array, shape: Shape | None, _groups: int, memory: Memory, reading: Reading | None) -> Array:
    """(N, C1, H, W, C0) to (N, C, H, W); without a shape C is C1 * C0."""
    require_rank(array, "NC1HWC0", "N C1 H W C0")
    n, c1, h, w, c0 = array.shape
    if shape is None:
        shape = (n, c1 * c0, h, w)
    require_same(array.shape, _device_shape(shape, c0), "NC1HWC0", "NCHW", shape)
    plain = memory(shape, array.dtype)
    from_blocks(array, _AXES, plain, reading=reading)
    return plain


def from_nchw(array: Array, c0: int, _groups: int, memory: Memory, reading: Reading | None) -> Array:
    """(N, C, H, W) to (N, C1, H, W, C0)."""
    device = memory(_device_shape(array.shape, c0), array.dtype)
    into_blocks(array, device, _AXES, reading=reading)
    return device


def _device_shape(shape: Shape, c0: int) -> Shape:
    n, c, h, w = shape
    return n, ceil_div(c, c0), h, w, c0


NC1HWC0 = DeviceFormat("NC1HWC0", "NCHW", to_nchw, from_nchw)
NC1HWC0_C04 = DeviceFormat("NC1HWC0_C04", "NCHW", to_nchw, from_nchw, c0=4)
