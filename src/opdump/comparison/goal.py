"""What A leaves of a step in float64, and what a run of B leaves that is not there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from opdump.comparison.among import Elements
from opdump.comparison.ends import End

_NEGLIGIBLE: Final = 1e-9
"""What is smaller, beside what a step does to a tensor, is rounding: gradients that are zero by mathematics, and what an optimizer makes of
them.
"""


_COARSE: Final = 1e-3
"""Relative to what a step does to a tensor: most faults do more, and what constants that were rounded come to is less."""


class Goal:
    """`storages` are what lasts of A, `others` its losses or, where nothing is trained, its outputs. A coarse one takes more for the same."""

    def __init__(self, storages: Sequence[End], others: Sequence[End], *, is_coarse: bool) -> None:
        self._is_coarse = is_coarse
        scales = [end.scale for end in storages if end.scale > 0 and np.isfinite(end.scale)]
        self._least = _NEGLIGIBLE * float(np.median(scales)) if scales else 0.0
        self._storages, self._others = self._elements(storages), self._elements(others)

    def missed_by(self, storages: Mapping[int, End], others: Sequence[End]) -> Iterator[object]:
        """What of B is not found there: storages by their number, others by their place. Counters are left alone."""
        for storage, end in storages.items():
            if not end.is_counter and not self._storages.have(end.values, self._tolerance(end)):
                yield storage
        for place, end in enumerate(others):
            if not self._others.have(end.values, self._tolerance(end)):
                yield "other", place

    def _elements(self, ends: Sequence[End]) -> Elements:
        return Elements([(end.values, self._tolerance(end)) for end in ends])

    def _tolerance(self, end: End) -> float:
        return (max(end.tolerance, _COARSE * end.scale) if self._is_coarse else end.tolerance) + self._least
