"""The differences between the statistics of many pairs of tensors: rows of summaries, all at once.

found = compare_summaries(rows_a, rows_b)
np.argsort(-found.l2norm)[:10]      the ten pairs whose norms differ most
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opdump.kernels.summary import SUMMARY_FIELDS

COUNTED = SUMMARY_FIELDS[:7]


@dataclass(frozen=True, slots=True)
class SummaryDifferences:
    """For each pair of rows, in order: relative differences |a - b| / |a|, and differences b - a of the counts.

    A relative difference is 0 if both numbers are equal, the same infinity or NaN. It is Inf if only a is 0, or if one of the two
    is NaN or an infinity that the other is not. For tensors without elements avg is NaN. Arrays have one dimension.
    """

    max: NDArray[np.float64]
    min: NDArray[np.float64]
    avg: NDArray[np.float64]
    l2norm: NDArray[np.float64]
    counts: NDArray[np.int64]
    """(n, 7): count, nan, positive_inf, negative_inf, zero, negative, positive (COUNTED)."""


def compare_summaries(rows_a: NDArray[np.float64], rows_b: NDArray[np.float64]) -> SummaryDifferences:
    """Compare rows of summaries, (n, 11) each, columns as in SUMMARY_FIELDS. Raises ValueError for other shapes."""
    if rows_a.shape != rows_b.shape or rows_a.ndim != 2 or rows_a.shape[1] != len(SUMMARY_FIELDS):
        raise ValueError(
            f"rows have {len(SUMMARY_FIELDS)} numbers, as many rows on both sides; found {rows_a.shape} and {rows_b.shape}"
        )
    a = {field: rows_a[:, at] for at, field in enumerate(SUMMARY_FIELDS)}
    b = {field: rows_b[:, at] for at, field in enumerate(SUMMARY_FIELDS)}
    with np.errstate(all="ignore"):
        return SummaryDifferences(
            max=_relative(a["max"], b["max"]),
            min=_relative(a["min"], b["min"]),
            avg=_relative(a["sum"] / a["count"], b["sum"] / b["count"]),
            l2norm=_relative(np.sqrt(a["sum_squares"]), np.sqrt(b["sum_squares"])),
            counts=(rows_b[:, : len(COUNTED)] - rows_a[:, : len(COUNTED)]).astype(np.int64),
        )


def _relative(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    found = np.abs(a - b) / np.abs(a)
    found[~(np.isfinite(a) & np.isfinite(b))] = np.inf
    found[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
    return found
