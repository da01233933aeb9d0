"""FRACTAL_Z_C04: weights of convolutions of at most 4 channels, as of the first layer on images, without padding to C0.

The weights of one filter are laid out by place and channel, K = (h * W + w) * 4 + c; weight (n, K) lies at
[K // C0, n // N0, n % N0, K % C0] of (K1, N1, N0, C0).

Source: the usual definition of the format. The specification has none, and no dump of a real device has confirmed it.
"""

from __future__ import annotations

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
    text,
)
from opdump.formats.reading import Reading

_CHANNELS = 4
# Of (K1, N1, N0, places, channels), to (N, C, H * W).
_AXES = ((1, 2), (4,), (0, 3))


def to_nchw(array: Array, shape: Shape | None, _groups: int, memory: Memory, reading: Reading | None) -> Array:
    """(K1, N1, N0, C0) to (N, C, H, W): the shape is needed."""
    require_rank(array, "FRACTAL_Z_C04", "K1 N1 N0 C0")
    if shape is None:
        raise FormatShapeError("FRACTAL_Z_C04 does not say what C, H and W are. Give the tensor's original shape")
    _, _, n0, c0 = array.shape
    require_same(array.shape, _device_shape(shape, n0, c0), "FRACTAL_Z_C04", "NCHW", shape)
    n, c, h, w = shape
    plain = memory(shape, array.dtype)
    # H and W lie side by side in every plain format, so that this is a view.
    from_blocks(_places_apart(array), _AXES, plain.reshape(n, c, h * w), reading=reading)
    return plain


def from_nchw(array: Array, c0: int, _groups: int, memory: Memory, reading: Reading | None) -> Array:
    """(N, C, H, W), C <= 4, to (K1, N1, N0, C0)."""
    device = memory(_device_shape(array.shape, CUBE, c0), array.dtype)
    n, c, h, w = array.shape
    into_blocks(array.reshape(n, c, h * w), _places_apart(device), _AXES, reading=reading)
    return device


def _places_apart(device: Array) -> Array:
    k1, n1, n0, c0 = device.shape
    return device.reshape(k1, n1, n0, c0 // _CHANNELS, _CHANNELS)


def _device_shape(shape: Shape, n0: int, c0: int) -> Shape:
    n, c, h, w = shape
    if c > _CHANNELS:
        raise FormatShapeError(f"FRACTAL_Z_C04 holds at most {_CHANNELS} channels; found {c} in {text(shape)}")
    if c0 % _CHANNELS:
        raise FormatShapeError(f"blocks of FRACTAL_Z_C04 hold whole places of {_CHANNELS} channels; found C0 = {c0}")
    return ceil_div(h * w * _CHANNELS, c0), ceil_div(n, n0), n0, c0


FRACTAL_Z_C04 = DeviceFormat("FRACTAL_Z_C04", "NCHW", to_nchw, from_nchw)
