"""The parts of a device format, its shapes and its placement, and the shape checks that all formats share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from opdump.errors import FormatShapeError
from opdump.formats.reading import Array, Shape

if TYPE_CHECKING:
    from opdump.formats.placement import Placement

CUBE = 16
"""Rows of a fractal, and the default number of channels of a block (the side of the device's matrix unit)."""


class PlainShape(Protocol):
    def __call__(self, array: Array, shape: Shape | None, groups: int, /) -> Shape:
        """The shape of the tensor in `array`: `shape`, which excludes the padding; the shape with padding if it is None.

        Raises FormatShapeError if no array of the format has that shape, if a tensor of `shape` has another, or if `shape` is
        required.
        """


class DeviceShape(Protocol):
    def __call__(self, shape: Shape, c0: int, groups: int, /) -> Shape:
        """The shape of an array with a tensor of `shape` in blocks of `c0` channels. Raises FormatShapeError if there is none."""


class Place(Protocol):
    def __call__(self, array: Array, shape: Shape, groups: int, /) -> Placement:
        """The placement of a tensor of `shape` in `array`, whose shape must be right, and which must have elements."""


@dataclass(frozen=True, slots=True)
class DeviceFormat:
    """A device format by its name in dump files. `plain` is the order of a tensor's shape: NCHW, NCDHW or ND (any rank)."""

    name: str
    plain: str
    plain_shape: PlainShape
    device_shape: DeviceShape
    place: Place
    c0: int = CUBE


def ceil_div(count: int, size: int) -> int:
    """The number of blocks of `size` for `count` items."""
    return -(-count // size)


def require_rank(array: Array, name: str, axes: str) -> None:
    """Raises FormatShapeError unless the array has axes such as `N C1 H W C0`, with non-empty blocks (the last axes)."""
    names = axes.split()
    if array.ndim != len(names):
        raise FormatShapeError(
            f"a tensor in {name} has the shape ({', '.join(names)}); found {array.shape}, of {array.ndim} dimensions"
        )
    empty = [axis for axis, size in zip(names, array.shape, strict=True) if axis[-1:] == "0" and size == 0]
    if empty:
        raise FormatShapeError(f"{name} has blocks of {empty[0]} elements; found {empty[0]} = 0 in {array.shape}")


def require_same(found: Shape, expected: Shape, name: str, plain: str, shape: Shape, groups: int = 1) -> None:
    """Raises FormatShapeError unless a device's array has the shape of a tensor with the plain `shape`."""
    if found != expected:
        of_groups = f" with {groups} groups" if groups != 1 else ""
        raise FormatShapeError(
            f"a tensor of the shape {shape} in {plain}{of_groups} has the shape {expected} in {name}; "
            f"found {found}. Give the tensor's original shape"
        )


def require_plain_shape(shape: Shape, plain: str) -> None:
    """Raises FormatShapeError unless `shape` is possible in the plain format."""
    if plain != "ND" and len(shape) != len(plain):
        raise FormatShapeError(f"a shape in {plain} has {len(plain)} dimensions; found {shape}")
    if any(size < 0 for size in shape):
        raise FormatShapeError(f"no dimension is negative; found {shape}")


def require_possible(shape: Shape, dtype: np.dtype[Any]) -> None:
    """Raises FormatShapeError for a shape that no array can have, even without elements."""
    if math.prod(size for size in shape if size) * dtype.itemsize >= 2**63:
        raise FormatShapeError(f"a tensor of the shape {shape} is larger than any memory")
