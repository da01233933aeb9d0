"""The statistics of all tensors of a step as columns, so that those of two runs are compared at once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.fills import LEAST_FILL
from opdump.comparison.statistics_apart import NAMES, Numbers, numbers_apart, numbers_of
from opdump.kernels import SUMMARY_FIELDS
from opdump.records import TensorRecord

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Places = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """A row for each tensor."""

    sizes: Floats
    """How many elements it has."""
    numbers: Floats
    """The statistics of `NAMES`; NaN where it lacks one."""
    held: Bools
    """Which of them it has."""
    told: Bools
    """Whether there is something to tell the tensor by."""

    @property
    def norms(self) -> Floats:
        """Infinite where the tensor holds NaN, or nothing is known."""
        norms = self.numbers[:, -1]
        return np.where(np.isnan(norms), np.inf, norms)

    def at(self, rows: Places) -> Columns:
        """Some rows, in this order."""
        return Columns(self.sizes[rows], self.numbers[rows], self.held[rows], self.told[rows])


def columns_of(records: Iterable[TensorRecord]) -> Columns:
    """The columns of some tensors."""
    found = list(records)
    numbers = [numbers_of(record) for record in found]
    table = np.array(numbers, np.float64).reshape(len(found), len(NAMES))
    held = ~np.isnan(table)
    for row in np.flatnonzero(~held.all(axis=1)):
        held[row] = [number is not None for number in numbers[row]]
    captured = np.fromiter((not record.skip for record in found), bool, len(found))
    sizes = np.fromiter((math.prod(record.shape) for record in found), np.float64, len(found))
    return Columns(sizes, table, held, captured & held[:, -1])


def columns_of_summaries(rows: Floats, sizes: Floats, *, captured: Bools) -> Columns:
    """The columns of tensors of these sizes, by rows of their summaries; NaN for the count of one that has none."""
    column = dict(zip(SUMMARY_FIELDS, rows.T, strict=True))
    counts = column["count"]
    averages = np.full(len(rows), np.nan)
    with np.errstate(all="ignore"):  # NaN and infinities are numbers too
        np.divide(column["sum"], counts, out=averages, where=counts > 0)
        table = np.stack((column["max"], column["min"], averages, np.sqrt(column["sum_squares"])), axis=1)
    has_summary = ~np.isnan(counts)
    table[~has_summary] = np.nan
    held = np.repeat(has_summary[:, None], len(NAMES), axis=1)
    return Columns(sizes, table, held, captured & has_summary)


def rows_apart(one: Columns, other: Columns) -> Floats:
    """How far the tensors of each row are apart, as `apart` says it; NaN where they cannot be compared."""
    a, b, both = one.numbers, other.numbers, one.held & other.held
    roots = np.sqrt(one.sizes)
    with np.errstate(all="ignore"):  # NaN and infinities are compared too
        distances = np.abs(a - b)
        distances[:, -1] /= roots
        same = ~both | (a == b) | (np.isnan(a) & np.isnan(b))
        parts = distances / _scales(one, roots)[:, None]
        parts[~np.isfinite(distances) | np.isnan(parts)] = np.inf
    parts[same] = 0.0
    found: Floats = parts.max(axis=1, initial=0.0)
    for row in np.flatnonzero((np.abs(a[:, :2]).max(axis=1, initial=0.0) >= LEAST_FILL) & (found > 0)).tolist():
        # The fill of a mask may rule all sums: few tensors have one.
        distance = numbers_apart(_numbers(one, row), _numbers(other, row), int(one.sizes[row]))
        found[row] = found[row] if distance is None else distance
    found[~both.any(axis=1)] = np.nan
    found[one.sizes != other.sizes] = np.inf
    return found


def _numbers(columns: Columns, row: int) -> Numbers:
    pairs = zip(columns.numbers[row].tolist(), columns.held[row].tolist(), strict=True)
    return tuple(number if held else None for number, held in pairs)


def _scales(columns: Columns, roots: Floats) -> Floats:
    norms = columns.numbers[:, -1]
    ends = np.abs(columns.numbers[:, :2])
    largest = np.where(np.isfinite(ends), ends, 0.0).max(axis=1, initial=0.0)
    of_elements = np.divide(norms, roots, out=np.zeros_like(norms), where=roots > 0)
    return np.where(np.isfinite(norms), of_elements, largest)
