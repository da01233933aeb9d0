"""NC1HWC0, NC1HWC0_C04 and NDC1HWC0: images and volumes with the channels in blocks.

Channel c of (N, C, H, W) is in block c // C0 at index c % C0 of (N, C1, H, W, C0), and of (N, C, D, H, W) in (N, D, C1, H, W,
C0). C0 is 16 for float16, 32 for int8, 8 or 16 for float32: it is read from the array. In NC1HWC0_C04 it is 4: the usual
definition, which no dump of a real device has confirmed.
"""

from __future__ import annotations

from dataclasses import replace

from opdump.formats.blocks import Blocks
from opdump.formats.device_format import DeviceFormat, ceil_div, require_rank, require_same
from opdump.formats.reading import Array, Shape


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
