"""The pass over two tensors in numpy, which specifies the compiled one (native/compare.cpp) to the last bit.

Both are read in index order, the last index varying fastest, and cast to float64. Sums are added in lanes, blocks and chunks as
in `reference.py`. Elements that are NaN or infinite in one of the two are excluded from sums and maxima, and are counted.

Sums of squares along an axis are added in spans of whole chunks, whose number follows from the shape (`_span_size`), and then
span by span. A run is the part of a row, along the last axis with more than one index, that lies in one block. Its squares are
added one by one to the sums of the last axis. They are also added together, in sixteen lanes from the start of the run, to one
sum of each other axis. Axes of more than 2^20 indices have no such sums, nor has a tensor with one axis.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from opdump.kernels.pair_metrics import PAIR_COUNTS, PAIR_MAXIMA, PAIR_SUMS, PairTotals
from opdump.kernels.reference import (
    BLOCK,
    CHUNK,
    LANES,
    MAX_DIMENSIONS,
    as_float64,
    chunk_sums,
    compensated,
    folded,
    in_whole_blocks,
    require_elements,
    require_reach,
    storage_dtype,
)
from opdump.kernels.summary import DTYPE_CODES

_MOST_SPANS = 64
_MOST_INDICES = 1 << 20
_DISTANCES = 65
_WIDE_INTEGERS = (DTYPE_CODES["int64"], DTYPE_CODES["uint64"])
_FLOATS = tuple(DTYPE_CODES[name] for name in ("float16", "bfloat16", "float32", "float64"))


def pair_totals(
    first: int,
    first_code: int,
    first_strides: Sequence[int],
    second: int,
    second_code: int,
    second_strides: Sequence[int],
    shape: Sequence[int],
    atol: float,
    rtol: float,
    with_argmax: bool,
) -> PairTotals:
    """Compare the elements of two strided tensors. Strides are in elements; an address is that of the element at index 0."""
    a = _elements(first, first_code, shape, first_strides)
    b = _elements(second, second_code, shape, second_strides)
    pass_ = _Pass(first_code, second_code, shape, atol, rtol)
    with np.errstate(all="ignore"):
        for begin in range(0, a.size, CHUNK):
            pass_.take(begin, a.flat[begin : begin + CHUNK], b.flat[begin : begin + CHUNK])
        if with_argmax and shape and shape[-1] > 1:
            pass_.counts["argmax_flips"] = _argmax_flips(a, first_code, b, second_code)
    return pass_.totals()


def _elements(pointer: int, code: int, shape: Sequence[int], strides_in_elements: Sequence[int]) -> NDArray[np.generic]:
    """The elements as an array, without a copy."""
    dtype = storage_dtype(code)
    if len(shape) != len(strides_in_elements):
        raise ValueError(f"the shape has {len(shape)} dimensions, the strides have {len(strides_in_elements)}")
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"found a tensor with {len(shape)} dimensions; at most {MAX_DIMENSIONS} can be compared")
    for size in shape:
        require_elements(1, size)
    require_reach(shape, strides_in_elements, dtype.itemsize)
    count = math.prod(shape)
    require_elements(pointer, count)
    if count == 0:
        return np.empty(shape, dtype)
    reaches = [(size - 1) * stride for size, stride in zip(shape, strides_in_elements, strict=True)]
    before = -sum(reach for reach in reaches if reach < 0)
    extent = before + sum(reach for reach in reaches if reach > 0) + 1
    start = pointer - before * dtype.itemsize
    buffer = memoryview((ctypes.c_char * (extent * dtype.itemsize)).from_address(start))
    strides = tuple(stride * dtype.itemsize for stride in strides_in_elements)
    elements: NDArray[np.generic] = np.ndarray(tuple(shape), dtype, buffer, before * dtype.itemsize, strides)
    return elements


class _Pass:
    """The results so far, chunk by chunk."""

    def __init__(self, first_code: int, second_code: int, shape: Sequence[int], atol: float, rtol: float) -> None:
        self._codes = first_code, second_code
        self._atol, self._rtol = atol, rtol
        self._axes = _Axes(shape)
        self._sums: list[list[float]] = [[] for _ in PAIR_SUMS]
        self._maxima = [0.0 for _ in PAIR_MAXIMA]
        self.counts = {**dict.fromkeys(PAIR_COUNTS, 0), "first_out": -1}
        self._distances = np.zeros(_DISTANCES if first_code == second_code else 0, np.int64)

    def totals(self) -> PairTotals:
        return PairTotals(
            [compensated(sums) for sums in self._sums],
            self._maxima,
            [self.counts[name] for name in PAIR_COUNTS],
            self._distances.tolist(),
            self._axes.worst(),
        )

    def take(self, begin: int, a: NDArray[np.generic], b: NDArray[np.generic]) -> None:
        first_code, second_code = self._codes
        x, y = as_float64(a, first_code), as_float64(b, second_code)
        finite = np.isfinite(x) & np.isfinite(y)
        alike = ~finite & ((x == y) | (np.isnan(x) & np.isnan(y)))
        other = ~finite & ~alike
        self._count(
            finite=finite,
            same_nonfinite=alike,
            nan_first=other & np.isnan(x),
            nan_second=other & np.isnan(y),
            inf_first=other & np.isinf(x),
            inf_second=other & np.isinf(y),
        )
        x, y = np.where(finite, x, 0.0), np.where(finite, y, 0.0)
        difference = np.abs(x - y)
        if first_code == second_code:
            distances = np.where(finite, _distances(a, b, first_code), np.uint64(0))
            self._distances += np.bincount(_bit_lengths(distances[~other]), minlength=_DISTANCES)
            if first_code in _WIDE_INTEGERS:  # their difference may be lost once they are float64
                difference = distances.astype(np.float64)
        size = np.abs(x)
        out = other | (difference > self._atol + self._rtol * size)
        self._count(
            different=other | (difference > 0),
            out_of_tolerance=out,
            sign_flips=((x < 0) & (y > 0)) | ((x > 0) & (y < 0)),
            from_zero=(x == 0) & (difference > 0),
        )
        if self.counts["first_out"] < 0 and out.any():
            self.counts["first_out"] = begin + int(out.argmax())
        relative = np.where(size > 0, difference / size, 0.0)
        squares = difference * difference
        found = (difference, relative, size, np.abs(y))
        self._maxima = [max(known, float(new.max())) for known, new in zip(self._maxima, found, strict=True)]
        terms = (difference, squares, relative, x * x, y * y, x * y)
        for sums, values in zip(self._sums, terms, strict=True):
            sums.extend(chunk_sums(in_whole_blocks(values)))
        self._axes.add(begin, squares)

    def _count(self, **found: NDArray[np.bool_]) -> None:
        for name, places in found.items():
            self.counts[name] += int(np.count_nonzero(places))


def _distances(a: NDArray[np.generic], b: NDArray[np.generic], code: int) -> NDArray[np.uint64]:
    """The number of representable values between two numbers, including the second; zeros of both signs are one number."""
    if code in _FLOATS:
        bits = np.dtype(f"uint{8 * a.dtype.itemsize}")
        sign = np.array(1 << (8 * a.dtype.itemsize - 1), bits)
        places = [
            np.where(each & sign, -(each & ~sign).astype(np.int64), (each & ~sign).astype(np.int64))
            for each in (a.view(bits), b.view(bits))
        ]
    elif code == DTYPE_CODES["bool"]:
        places = [each.astype(np.bool_).astype(np.int64) for each in (a, b)]
    else:
        places = [a, b] if code in _WIDE_INTEGERS else [a.astype(np.int64), b.astype(np.int64)]
    one, other = places
    up = one.astype(np.uint64) - other.astype(np.uint64)
    distances: NDArray[np.uint64] = np.where(one > other, up, np.uint64(0) - up)
    return distances


def _bit_lengths(numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
    lengths = np.zeros(numbers.shape, np.int64)
    for shift in (32, 16, 8, 4, 2, 1):
        high = numbers >> np.uint64(shift) > 0
        lengths += np.where(high, shift, 0)
        numbers = np.where(high, numbers >> np.uint64(shift), numbers)
    return lengths + (numbers > 0)


class _Axes:
    """Sums of squares along each axis with more than one index."""

    def __init__(self, shape: Sequence[int]) -> None:
        self._numbers = [axis for axis, size in enumerate(shape) if size != 1]
        self._sizes = [shape[axis] for axis in self._numbers]
        kept = [len(self._sizes) > 1 and size <= _MOST_INDICES for size in self._sizes]
        self._sums = [np.zeros(size if keep else 0) for size, keep in zip(self._sizes, kept, strict=True)]
        self._of_span = [np.zeros_like(sums) for sums in self._sums]
        self._span_size = _span_size(math.prod(shape), sum(sums.size for sums in self._sums))

    def add(self, begin: int, squares: NDArray[np.float64]) -> None:
        """Add the squares from element `begin` on: a chunk or the rest."""
        if not any(sums.size for sums in self._sums):
            return
        if begin % self._span_size == 0:
            self._end_span()
        place = np.arange(begin, begin + squares.size)
        row, column = np.divmod(place, self._sizes[-1])
        begins = np.flatnonzero((column == 0) | (place % BLOCK == 0))
        run = np.zeros(squares.size, np.int64)
        run[begins[1:]] = 1
        run = np.cumsum(run)
        lanes = np.zeros((begins.size, LANES))
        np.add.at(lanes, (run, (place - place[begins][run]) % LANES), squares)
        index, of_runs = row[begins], folded(lanes)
        if self._of_span[-1].size:
            np.add.at(self._of_span[-1], column, squares)
        for sums, size in zip(self._of_span[-2::-1], self._sizes[-2::-1], strict=True):
            index, remainder = np.divmod(index, size)
            if sums.size:
                np.add.at(sums, remainder, of_runs)

    def worst(self) -> list[tuple[int, int, float]]:
        self._end_span()
        return [
            (axis, int(sums.argmax()), float(sums.max()))
            for axis, sums in zip(self._numbers, self._sums, strict=True)
            if sums.size and sums.max() > 0
        ]

    def _end_span(self) -> None:
        for sums, new in zip(self._sums, self._of_span, strict=True):
            np.add(sums, new, out=sums)
            new[:] = 0.0


def _span_size(count: int, sums: int) -> int:
    """The number of elements of a span: at most 64 spans, whose sums take less than a quarter of the tensors, or a MiB."""
    chunks = -(-count // CHUNK)
    by_memory = max(count // 16, 1 << 17) // sums if sums else _MOST_SPANS
    wanted = max(1, min(_MOST_SPANS, chunks, by_memory))
    return max(1, -(-chunks // wanted)) * CHUNK


def _argmax_flips(a: NDArray[np.generic], first_code: int, b: NDArray[np.generic], second_code: int) -> int:
    """The number of rows along the last axis whose largest element has a different index; the first NaN is the largest."""
    row = a.shape[-1]
    if row > CHUNK:
        begins = range(0, a.size, row)
        return sum(_argmax(a, first_code, begin, row) != _argmax(b, second_code, begin, row) for begin in begins)
    return sum(
        int(np.count_nonzero(one.argmax(axis=1) != other.argmax(axis=1)))
        for one, other in zip(_rows(a, first_code, row), _rows(b, second_code, row), strict=True)
    )


def _rows(elements: NDArray[np.generic], code: int, row: int) -> Iterator[NDArray[np.float64]]:
    step = CHUNK // row * row
    for begin in range(0, elements.size, step):
        yield as_float64(elements.flat[begin : begin + step], code).reshape(-1, row)


def _argmax(elements: NDArray[np.generic], code: int, begin: int, row: int) -> int:
    """The index for one row, part by part."""
    found, largest = -1, -math.inf
    for first in range(begin, begin + row, CHUNK):
        values = as_float64(elements.flat[first : min(first + CHUNK, begin + row)], code)
        place = int(values.argmax())
        value = float(values[place])
        if found < 0 or math.isnan(value) or value > largest:
            found, largest = first - begin + place, value
        if math.isnan(value):
            break
    return found
