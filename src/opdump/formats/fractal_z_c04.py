"""FRACTAL_Z_C04: weights of convolutions of at most 4 channels, as of the first layer on images, without padding to C0.

The weights of one filter are laid out by place and channel, K = (h * W + w) * 4 + c; weight (n, K) is at
[K // C0, n // N0, n % N0, K % C0] of (K1, N1, N0, C0).

This is the usual definition, which no dump of a real device has confirmed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from opdump.errors import FormatShapeError
from opdump.formats.blocks import Blocks
from opdump.formats.device_format import CUBE, DeviceFormat, ceil_div, require_rank, require_same
from opdump.formats.reading import Array, Loop, Shape

_CHANNELS = 4


@dataclass(frozen=True, slots=True)
class _Rows:
    """The placement of (N, C, H, W), with its rows one after another in `blocks`, the placement of (N, C, H * W)."""

    blocks: Blocks
    width: int

    def loops(self) -> Sequence[Loop]:
        """The loops of the blocks; the one along H * W is split into a loop over the rows in a block, and one within a row."""
        loops = []
        for axis, unit, span in self.blocks.loops():
            if axis == 2:
                rows = max(1, unit // self.width)
                loops += [Loop(2, rows, ceil_div(rows * self.width, unit) * span), Loop(3, unit, span)]
            else:
                loops.append(Loop(axis, unit, span))
        return loops

    def pairs(self, plain: Array, starts: Shape) -> Iterator[tuple[Array, Array]]:
        n, c, h, w = starts
        first = h * self.width + w
        *outer, rows, columns = plain.shape
        _, _, of_row, of_column = plain.strides
        if columns == self.width and of_row == columns * of_column:  # one long row; a view, as the strides allow it
            yield from self.blocks.pairs(plain.reshape(*outer, rows * columns), (n, c, first))
        else:
            for row in range(rows):
                yield from self.blocks.pairs(plain[:, :, row], (n, c, first + row * self.width))


def _place(array: Array, shape: Shape, _groups: int) -> _Rows:
    k1, n1, n0, c0 = array.shape
    apart = array.reshape(k1, n1, n0, c0 // _CHANNELS, _CHANNELS)
    return _Rows(Blocks(apart, ((1, 2), (4,), (0, 3))), shape[3])


def _plain_shape(array: Array, shape: Shape | None, _groups: int) -> Shape:
    """(N, C, H, W) of (K1, N1, N0, C0): the shape is needed."""
    require_rank(array, "FRACTAL_Z_C04", "K1 N1 N0 C0")
    if shape is None:
        raise FormatShapeError("FRACTAL_Z_C04 does not say what C, H and W are. Give the tensor's original shape")
    _, _, n0, c0 = array.shape
    require_same(array.shape, _in_blocks(shape, n0, c0), "FRACTAL_Z_C04", "NCHW", shape)
    return shape


def _device_shape(shape: Shape, c0: int, _groups: int) -> Shape:
    return _in_blocks(shape, CUBE, c0)


def _in_blocks(shape: Shape, n0: int, c0: int) -> Shape:
    n, c, h, w = shape
    if c > _CHANNELS:
        raise FormatShapeError(f"FRACTAL_Z_C04 holds at most {_CHANNELS} channels; found {c} in {shape}")
    if c0 % _CHANNELS:
        raise FormatShapeError(f"blocks of FRACTAL_Z_C04 hold whole places of {_CHANNELS} channels; found C0 = {c0}")
    return ceil_div(h * w * _CHANNELS, c0), ceil_div(n, n0), n0, c0


FRACTAL_Z_C04 = DeviceFormat("FRACTAL_Z_C04", "NCHW", _plain_shape, _device_shape, _place)
