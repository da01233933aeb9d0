"""Places a tensor whose axes are split into blocks, as in most device formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from types import EllipsisType
from typing import NamedTuple

from numpy.lib.stride_tricks import as_strided

from opdump.formats.reading import Array, Loop, Shape, outermost_first

Axes = Sequence[tuple[int, ...]]
_Index = tuple[slice | EllipsisType, ...]
"""With an ellipsis, an array without axes stays an array."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A placement in `device`, a view of a device's array with one axis for each loop of its memory.

    `axes[d]` names the loops that form axis d of the tensor: one, or two, the number of the block and the index in it.
    """

    device: Array
    axes: Axes

    def loops(self) -> list[Loop]:
        shape, strides = self.device.shape, self.device.strides
        return outermost_first(
            Loop(axis, shape[parts[1]] if len(parts) > 1 else 1, abs(strides[parts[0]]))
            for axis, parts in enumerate(self.axes)
        )

    def pairs(self, plain: Array, starts: Shape) -> Iterator[tuple[Array, Array]]:
        """Views of raw bytes, because some types cannot be strided."""
        plain, device = plain.view(f"V{plain.itemsize}"), self.device.view(f"V{self.device.itemsize}")
        of_axis = [
            [_Piece(0, (slice(start, start + size),), (size,))]
            if len(parts) == 1
            else _pieces(start, size, device.shape[parts[1]])
            for parts, start, size in zip(self.axes, starts, plain.shape, strict=True)
        ]
        moved = device.transpose([axis for parts in self.axes for axis in parts])
        for pieces in product(*of_axis):
            sizes: list[int] = []
            strides: list[int] = []
            for piece, stride in zip(pieces, plain.strides, strict=True):
                sizes += piece.sizes
                strides += [stride] if len(piece.sizes) == 1 else [stride * piece.sizes[1], stride]
            corner: _Index = (*(slice(piece.first, None) for piece in pieces), ...)
            places: _Index = (*(part for piece in pieces for part in piece.slices), ...)
            yield as_strided(plain[corner], sizes, strides), moved[places]


class _Piece(NamedTuple):
    """A part of a plain axis: its offset, the slices of the device's axes, and their sizes."""

    first: int
    slices: tuple[slice, ...]
    sizes: Shape


def _pieces(first_in_device: int, count: int, block: int) -> list[_Piece]:
    """The part before the first whole block, the whole blocks, and the part after them."""
    pieces = []
    done = 0
    while done < count:
        outer, inner = divmod(first_in_device + done, block)
        left = count - done
        if inner or left < block:
            size = min(block - inner, left)
            pieces.append(_Piece(done, (slice(outer, outer + 1), slice(inner, inner + size)), (1, size)))
        else:
            blocks = left // block
            size = blocks * block
            pieces.append(_Piece(done, (slice(outer, outer + blocks), slice(0, block)), (blocks, block)))
        done += size
    return pieces
