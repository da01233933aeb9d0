"""Finds how the same elements lie in two tensors of different frameworks: NCHW and NHWC, transposed weights, heads before or after positions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.differences import difference

Array = NDArray[Any]

_MOST_AXES: Final = 5
"""Axes longer than one that are permuted: 120 orders."""
_SAMPLES: Final = 64
_NO_NEARER: Final = 1e-5
"""Other orders of the same elements are much further off."""


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """How B's tensor becomes one of A's: its shape for a start, the axes in their new order, A's shape."""

    start: tuple[int, ...]
    axes: tuple[int, ...]
    end: tuple[int, ...]

    def apply(self, other: Array) -> Array:
        """B's elements, in A's layout."""
        moved: Array = other.reshape(self.start).transpose(self.axes).reshape(self.end)
        return moved

    def turned(self, shape: tuple[int, ...]) -> TensorLayout:
        """How A's tensor becomes B's, which has this shape."""
        axes = tuple(self.axes.index(axis) for axis in range(len(self.axes)))
        return TensorLayout(tuple(self.start[axis] for axis in self.axes), axes, shape)


def find_layout(one: Array, other: Array, *, within: float) -> tuple[TensorLayout, float] | None:
    """The layout in which B's elements are nearest to A's, and the relative difference that is left; None where that is not `within`."""
    best: tuple[TensorLayout, float] | None = None
    picks = np.unique(np.linspace(0, one.size - 1, min(one.size, _SAMPLES)).astype(np.int64))
    sample = one.reshape(-1)[picks]
    for layout in _layouts(one.shape, other.shape):
        moved = other.reshape(layout.start).transpose(layout.axes)
        if best is not None or one.size > _SAMPLES:
            sampled = moved[np.unravel_index(picks, moved.shape)] if moved.shape else moved.reshape(-1)
            if difference(sample, sampled).relative > 10 * within:
                continue
        found = difference(one, moved.reshape(layout.end)).relative
        if found <= within and (best is None or found < best[1]):
            best = layout, found
            if found < _NO_NEARER:
                break
    return best


def _layouts(one: tuple[int, ...], other: tuple[int, ...]) -> Iterator[TensorLayout]:
    """The row-major order first, then permutations of B's axes, and those of A's that make B's order."""
    long_a, long_b = tuple(size for size in one if size > 1), tuple(size for size in other if size > 1)
    yield TensorLayout(long_b, tuple(range(len(long_b))), one)
    if len(long_b) <= _MOST_AXES:
        for axes in itertools.islice(itertools.permutations(range(len(long_b))), 1, None):
            yield TensorLayout(long_b, axes, one)
    if len(long_a) <= _MOST_AXES and long_a != long_b:
        for axes in itertools.islice(itertools.permutations(range(len(long_a))), 1, None):
            inverse = tuple(axes.index(axis) for axis in range(len(axes)))
            yield TensorLayout(tuple(long_a[axis] for axis in axes), inverse, one)
