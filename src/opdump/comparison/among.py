"""Looks for the elements of a tensor among those of others, wherever they are: what one program holds in one tensor, another holds in parts.

That a number is near proves nothing where there are many: each of some random numbers is near one of a hundred million others. So all of a
tensor's elements are found there by chance, or they lie there as they lie in the tensor: in rows, in columns, in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_BY_CHANCE: Final = 1e-6
"""What is less probable is no chance."""
_STEPS: Final = 4
"""From one element to the next in a tensor it is one of so many distances in the other: the next, the next row, the next part."""
_MOST: Final = 0.5
"""The share of elements that are followed by the same elements as in the tensor; others are the ends of parts, or rounded."""


class Elements:
    """Those of some tensors, each with how far its elements may be off."""

    def __init__(self, tensors: Sequence[tuple[Array, float]]) -> None:
        flat = np.concatenate([values.reshape(-1) for values, _ in tensors] or [np.zeros(0)])
        self._order = np.argsort(flat)
        self._values = flat[self._order]
        self._ends = np.cumsum([values.size for values, _ in tensors])
        self._tolerances = np.array([tolerance for _, tolerance in tensors])

    def have(self, values: Array, tolerance: float, *, is_noise: bool = False) -> bool:
        """Whether they have all elements of a tensor. Of noise no more is asked than that each is near."""
        own = values.reshape(-1)
        if not len(self._values):
            return False
        near, places = self._nearest(own, tolerance)
        return bool(near.all()) and (is_noise or not self._by_chance(own, tolerance) or _are_in_order(places))

    def _nearest(self, own: Array, tolerance: float) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Whether an element is near each of these, and the place of the nearest."""
        after = np.searchsorted(self._values, own).clip(max=len(self._values) - 1)
        (near, apart), (near_before, apart_before) = (
            self._near(own, at, tolerance) for at in (after, (after - 1).clip(min=0))
        )
        is_before = near_before & (~near | (apart_before < apart))
        return near | near_before, self._order[np.where(is_before, after - 1, after).clip(min=0)]

    def _near(self, own: Array, at: NDArray[np.int64], tolerance: float) -> tuple[NDArray[np.bool_], Array]:
        found = self._values[at]
        allowed = self._tolerances[np.searchsorted(self._ends, self._order[at], side="right")]
        with np.errstate(invalid="ignore"):
            apart = np.abs(found - own)
            near = (apart <= tolerance + allowed) | (found == own) | (np.isnan(own) & np.isnan(self._values[-1]))
        return near, apart

    def _by_chance(self, own: Array, tolerance: float) -> bool:
        """Whether numbers that are none of these, and lie where they lie, would be found as well."""
        distinct = np.unique(own[np.isfinite(own)])
        if len(distinct) < 2:
            return True
        share = float(np.mean(self._nearest((distinct[1:] + distinct[:-1]) / 2, tolerance)[0]))
        return share > 0 and len(distinct) * math.log(share) > math.log(_BY_CHANCE)


def _are_in_order(places: NDArray[np.int64]) -> bool:
    """Whether most elements follow each other by one of a few distances."""
    steps, counts = np.unique(np.diff(places), return_counts=True)
    return int(np.sort(counts)[-_STEPS:].sum()) >= _MOST * (len(places) - 1) if len(steps) else True
