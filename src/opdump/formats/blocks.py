"""Copies between a plain array and a device's array, in which an axis of the plain one is split in blocks.

A device's array is looked at with one axis for each loop of its memory. `axes[d]` names those that make axis d of the
plain array: one, or two, the number of the block and the place in it. Padding is what no plain element is copied to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from numpy.lib.stride_tricks import as_strided

from opdump.formats.device_format import Array, Shape
from opdump.formats.reading import Loop, Reading, boxes, loops_of, outermost_first
from opdump.kernels import copy_elements

Axes = Sequence[tuple[int, ...]]


class _Piece(NamedTuple):
    """A part of a plain axis: its place there, the slices of the device's axes, and their sizes."""

    first: int
    slices: tuple[slice, ...]
    sizes: Shape


def _pieces(first_in_device: int, count: int, block: int) -> list[_Piece]:
    """What is before the first whole block, the whole blocks, what is after them."""
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


def _pairs(plain: Array, device: Array, axes: Axes, starts: Shape) -> Iterator[tuple[Array, Array]]:
    """Views of the same shape of the plain and of the device's array, of bare bytes: some types cannot be strided."""
    plain, device = plain.view(f"V{plain.itemsize}"), device.view(f"V{device.itemsize}")
    of_axis = [
        [_Piece(0, (slice(start, start + size),), (size,))]
        if len(parts) == 1
        else _pieces(start, size, device.shape[parts[1]])
        for parts, start, size in zip(axes, starts, plain.shape, strict=True)
    ]
    order = [axis for parts in axes for axis in parts]
    moved = device.transpose(order)
    for pieces in product(*of_axis):
        sizes: list[int] = []
        strides: list[int] = []
        for piece, stride in zip(pieces, plain.strides, strict=True):
            sizes += piece.sizes
            strides += [stride] if len(piece.sizes) == 1 else [stride * piece.sizes[1], stride]
        corner = plain[tuple(slice(piece.first, None) for piece in pieces)]
        yield (
            as_strided(corner, sizes, strides),
            moved[tuple(part for piece in pieces for part in piece.slices)],
        )


def from_blocks(
    device: Array, axes: Axes, plain: Array, starts: Shape | None = None, reading: Reading | None = None
) -> None:
    """Fill the plain array from the device's; `starts` says which of its elements is the first, axis by axis."""
    if plain.size:
        for part, first in _in_boxes(plain, _loops_of_blocks(device, axes), starts, reading):
            for elements, blocks in _pairs(part, device, axes, first):
                copy_elements(blocks, elements)


def into_blocks(
    plain: Array, device: Array, axes: Axes, starts: Shape | None = None, reading: Reading | None = None
) -> None:
    """Fill the device's array from the plain one."""
    if plain.size:
        for part, first in _in_boxes(plain, loops_of(plain), starts, reading):
            for elements, blocks in _pairs(part, device, axes, first):
                copy_elements(elements, blocks)


def _in_boxes(
    plain: Array, loops: Sequence[Loop], starts: Shape | None, reading: Reading | None
) -> Iterator[tuple[Array, Shape]]:
    """Parts of the plain array, and where in the device's each begins."""
    for box in boxes(plain.shape, loops, reading):
        part = plain[tuple(slice(*limits) for limits in box)]
        yield part, tuple(start + at for start, (at, _) in zip(starts or (0,) * plain.ndim, box, strict=True))


def _loops_of_blocks(device: Array, axes: Axes) -> list[Loop]:
    return outermost_first(
        Loop(axis, device.shape[parts[1]] if len(parts) > 1 else 1, abs(device.strides[parts[0]]))
        for axis, parts in enumerate(axes)
    )
