"""Moves elements between a plain tensor and an array of a device format, or between two such arrays.

With a `Reading`, it works box by box, in the memory order of the source. Between two arrays of devices, each box is a separate
array, so that the whole plain tensor is never in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import EllipsisType
from typing import Protocol

import numpy as np

from opdump.formats.reading import Array, Loop, Reading, Shape, boxes, loops_of
from opdump.kernels import copy_elements


class Placement(Protocol):
    """The positions of a plain tensor's elements in a device's array; all others are padding."""

    def loops(self) -> Sequence[Loop]:
        """The loops of the array's memory, the outermost first."""

    def pairs(self, plain: Array, starts: Shape) -> Iterator[tuple[Array, Array]]:
        """Pairs of views of the same shape, of `plain` and of the device's array, that together cover `plain`.

        `plain` is a part of the tensor, with any strides; `starts` is the index of its first element in the tensor.
        """


def read_elements(source: Placement, plain: Array, reading: Reading | None) -> None:
    """Fill the plain tensor from the device's array."""
    for part, starts in _parts(plain, source.loops(), reading):
        _read(source, part, starts)


def write_elements(plain: Array, target: Placement, reading: Reading | None) -> None:
    """Fill the device's array, except its padding, from the plain tensor."""
    for part, starts in _parts(plain, loops_of(plain), reading):
        _write(part, target, starts)


def move_elements(
    source: Placement, target: Placement, shape: Shape, dtype: np.dtype[np.generic], reading: Reading | None
) -> None:
    """Fill a device's array, except its padding, from another one of the same tensor; `shape` is the tensor's own."""
    for box in boxes(shape, source.loops(), reading):
        part = np.empty([stop - start for start, stop in box], dtype)
        starts = tuple(start for start, _ in box)
        _read(source, part, starts)
        _write(part, target, starts)


def _read(source: Placement, part: Array, starts: Shape) -> None:
    for elements, places in source.pairs(part, starts):
        copy_elements(places, elements)


def _write(part: Array, target: Placement, starts: Shape) -> None:
    for elements, places in target.pairs(part, starts):
        copy_elements(elements, places)


def _parts(plain: Array, loops: Sequence[Loop], reading: Reading | None) -> Iterator[tuple[Array, Shape]]:
    """Parts of the plain tensor, and the index in it where each begins."""
    for box in boxes(plain.shape, loops, reading):
        index: tuple[slice | EllipsisType, ...] = (*(slice(*limits) for limits in box), ...)
        yield plain[index], tuple(start for start, _ in box)
