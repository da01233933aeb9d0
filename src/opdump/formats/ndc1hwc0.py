"""NDC1HWC0: volumes with the channels in blocks, as NC1HWC0 has them for images.

Channel c of (N, C, D, H, W) lies in block c // C0 at place c % C0 of (N, D, C1, H, W, C0).

Source: section 3 of the description of msaccucmp.
"""

from __future__ import annotations

from opdump.formats.blocks import from_blocks, into_blocks
from opdump.formats.device_format import Array, DeviceFormat, Memory, Shape, ceil_div, require_rank, require_same
from opdump.formats.reading import Reading

_AXES = ((0,), (2, 5), (1,), (3,), (4,))


def to_ncdhw(array: Array, shape: Shape | None, _groups: int, memory: Memory, reading: Reading | None) -> Array:
    """(N, D, C1, H, W, C0) to (N, C, D, H, W); without a shape C is C1 * C0."""
    require_rank(array, "NDC1HWC0", "N D C1 H W C0")
    n, d, c1, h, w, c0 = array.shape
    if shape is None:
        shape = (n, c1 * c0, d, h, w)
    require_same(array.shape, _device_shape(shape, c0), "NDC1HWC0", "NCDHW", shape)
    plain = memory(shape, array.dtype)
    from_blocks(array, _AXES, plain, reading=reading)
    return plain


def from_ncdhw(array: Array, c0: int, _groups: int, memory: Memory, reading: Reading | None) -> Array:
    """(N, C, D, H, W) to (N, D, C1, H, W, C0)."""
    device = memory(_device_shape(array.shape, c0), array.dtype)
    into_blocks(array, device, _AXES, reading=reading)
    return device


def _device_shape(shape: Shape, c0: int) -> Shape:
    n, c, d, h, w = shape
    return n, d, ceil_div(c, c0), h, w, c0


NDC1HWC0 = DeviceFormat("NDC1HWC0", "NCDHW", to_ncdhw, from_ncdhw)
