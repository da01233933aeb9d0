"""Measures how far the results of a twin are from those of the program's own function, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from opdump.adapters.jax.host import borrowed

_LARGE: Final = 1e-3
"""Relative to the largest element of a result. A larger deviation causes a warning."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """`facts` are JSON values: the number of results, how many differ, and the largest difference, absolute and relative to the largest element."""

    text: str
    facts: dict[str, Any]
    is_large: bool


def deviation(function: str, names: Sequence[str], twin: Sequence[Any], program: Sequence[Any]) -> Deviation:
    """Compare the results one by one. NaN at the same position counts as equal."""
    differing, largest, relative, worst = 0, 0.0, 0.0, ""
    for name, ours, theirs in zip(names, twin, program, strict=True):
        a, b = borrowed(ours), borrowed(theirs)
        if isinstance(a, str) or isinstance(b, str) or a.tobytes() == b.tobytes():
            continue
        differing += 1
        apart, scale = _apart(a, b)
        largest = max(largest, apart)
        if apart and (scale == 0 or apart / scale > relative or not worst):
            relative, worst = (apart / scale if scale else float("inf")), name
    facts: dict[str, Any] = {"results": len(names), "differ": differing, "largest": largest, "relative": relative}
    if not differing:
        return Deviation(f"{function}: its twin produces the same results, bit for bit", facts, is_large=False)
    text = (
        f"{function}: {differing} of {len(names)} results of its twin differ from the program's, by {largest:.2g} at most, "
        f"{relative:.2g} of the largest element ({worst})"
    )
    if relative > _LARGE:
        text += "; an optimizer that divides rounding errors by their own size (Adam in its first steps) causes such differences"
    return Deviation(text, {**facts, "worst": worst}, is_large=relative > _LARGE)


def _apart(a: Any, b: Any) -> tuple[float, float]:
    """The largest difference of two arrays of the same shape, and the largest finite element of the second."""
    if a.size == 0 or a.shape != b.shape:
        return 0.0, 0.0
    kind = np.complex128 if a.dtype.kind == "c" else np.float64
    a, b = a.astype(kind), b.astype(kind)
    with np.errstate(invalid="ignore", over="ignore"):
        differences = np.abs(a - b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    differences = np.where(same, 0.0, np.where(np.isnan(differences), np.inf, differences))
    sizes = np.abs(b)
    return float(differences.max()), float(sizes[np.isfinite(sizes)].max(initial=0.0))
