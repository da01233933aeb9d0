"""An input or output of an operator, in the form that the overflow checks take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from opdump.kernels import Summary

# All types that a summary supports, and the 8-bit floats.
FLOATS: Final = frozenset({"float16", "bfloat16", "float32", "float64"})
SIGNED: Final = frozenset({"int8", "int16", "int32", "int64"})
UNSIGNED: Final = frozenset({"uint8", "uint16", "uint32", "uint64"})
INTEGERS: Final = SIGNED | UNSIGNED
_EXACT: Final = INTEGERS | {"bool"}


# Created for every tensor of every operator: a frozen dataclass would take four times as long.
class InspectedTensor(NamedTuple):
    """One tensor: type, shape, summary, and access to its elements for the few checks that need them.

    `dtype` is spelled as in a record (`float16`, `bfloat16`, `int8`). `summary` is None for types without one (complex numbers,
    8-bit floats). `elements` returns an array of `shape`, with bfloat16 and 8-bit floats widened to float32 as in a payload, or
    None if they are not available. It is called while the elements are unchanged: for an input, before the operator overwrites
    it.
    """

    dtype: str
    shape: tuple[int, ...]
    argument: str = ""
    """Its name in the operator's schema (`self`, `tensors[2]`); empty if unknown."""
    summary: Summary | None = None
    elements: Callable[[], npt.NDArray[Any]] | None = None

    @property
    def is_exact(self) -> bool:
        """Whether its type has no NaN and no infinity: integers and bool."""
        return self.dtype in _EXACT

    @property
    def is_empty(self) -> bool:
        return 0 in self.shape

    @property
    def cannot_have_overflowed(self) -> bool:
        """Whether it cannot be the result of an overflow: finite floats, or a type that cannot overflow."""
        summary = self.summary
        if self.dtype in FLOATS and summary is not None:
            return not (summary.nan or summary.positive_inf or summary.negative_inf)
        return self.dtype == "bool"

    def count_of_non_finite(self) -> tuple[int, int] | None:
        """The numbers of NaN and infinite elements; None if they are unknown."""
        if self.summary is not None:
            return int(self.summary.nan), int(self.summary.positive_inf + self.summary.negative_inf)
        if self.is_exact or self.is_empty:
            return 0, 0
        if self.elements is None:
            return None
        array = self.elements()
        if not np.issubdtype(array.dtype, np.inexact):
            return None
        return int(np.count_nonzero(np.isnan(array))), int(np.count_nonzero(np.isinf(array)))

    @property
    def is_finite(self) -> bool | None:
        """Whether every element is finite; None if unknown."""
        summary = self.summary
        if summary is not None:  # the one case on the hot path
            return not (summary.nan or summary.positive_inf or summary.negative_inf)
        found = self.count_of_non_finite()
        return None if found is None else found == (0, 0)
