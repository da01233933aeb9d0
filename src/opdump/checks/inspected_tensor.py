"""An input or output of an operator as the overflow checks take it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from opdump.kernels import Summary

# Of every type that a summary can be of, and of those of 8 bits.
FLOATS: Final = frozenset({"float16", "bfloat16", "float32", "float64"})
SIGNED: Final = frozenset({"int8", "int16", "int32", "int64"})
UNSIGNED: Final = frozenset({"uint8", "uint16", "uint32", "uint64"})
INTEGERS: Final = SIGNED | UNSIGNED
_EXACT: Final = INTEGERS | {"bool"}


# Made for every tensor of every operator: a frozen dataclass takes four times as long.
class InspectedTensor(NamedTuple):
    """One tensor: its type and shape, its summary, and a way to its elements for the few checks that need them.

    `dtype` is the name of a record (`float16`, `bfloat16`, `int8`). Of a type that has no summary (complex numbers, floats of 8 bits)
    `summary` is None. `elements` gives an array of `shape`, bfloat16 and 8-bit floats widened to float32 as a payload has them; None
    where they cannot be had. It is called while they are what they were: for an input, before the operator runs over it.
    """

    dtype: str
    shape: tuple[int, ...]
    argument: str = ""
    """Its name in the operator's schema (`self`, `tensors[2]`); empty where unknown."""
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
        """Whether no overflow can have ended in it: finite floats, or a type that cannot overflow."""
        summary = self.summary
        if self.dtype in FLOATS and summary is not None:
            return not (summary.nan or summary.positive_inf or summary.negative_inf)
        return self.dtype == "bool"

    def count_of_non_finite(self) -> tuple[int, int] | None:
        """How many elements are NaN and how many are infinite; None where nothing is known of them."""
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
        """Whether every element is finite; None where nothing is known of them."""
        summary = self.summary
        if summary is not None:  # the one case of the hot path
            return not (summary.nan or summary.positive_inf or summary.negative_inf)
        found = self.count_of_non_finite()
        return None if found is None else found == (0, 0)
