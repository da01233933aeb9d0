"""The kernels in numpy: they specify the compiled ones to the last bit, and are used if those are missing.

Every element is cast to float64 first. Floating-point addition depends on its order, so the order is part of the
specification; neither the instruction set nor the number of threads may change it:

    lane    elements j, j + 16, j + 32, ... of a block, added one after the other
    block   2048 elements; its 16 lanes are folded in halves: 16 to 8, 4, 2, 1
    chunk   32 blocks, added one after the other with Neumaier's compensation (ZAMM 54, 1974)
    tensor  its chunks, added in the same way

A square is rounded before it is added. If a tensor has NaN or Inf, its sums follow from the counts. A strided tensor is read in
memory order: see `_simplify`.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opdump.kernels.summary import DTYPE_CODES, SUMMARY_FIELDS, Summary

LANES = 16
BLOCK = 2048
_BLOCKS_OF_CHUNK = 32
CHUNK = BLOCK * _BLOCKS_OF_CHUNK
# Number of elements converted to float64 at a time: large enough to hide numpy's overhead, small enough for the cache.
_CHUNKS_AT_A_TIME = 2
MAX_DIMENSIONS = 64
_MOST_ADJACENT = ((1 << 63) - 1) // 16

_NAMES = {code: name for name, code in DTYPE_CODES.items()}


def storage_dtype(code: int) -> np.dtype[np.generic]:
    """The numpy type with the bits of one element."""
    name = _NAMES.get(code)
    if name is None:
        raise ValueError(f"dtype code {code} is not in DTYPE_CODES, which end at {max(_NAMES)}")
    return np.dtype({"bfloat16": "uint16", "bool": "uint8"}.get(name, name))


def as_float64(elements: NDArray[np.generic], code: int) -> NDArray[np.float64]:
    """The values of the elements; bfloat16 is passed as its bits."""
    values: NDArray[np.generic] = elements
    if code == DTYPE_CODES["bfloat16"]:
        values = (elements.astype(np.uint32) << np.uint32(16)).view(np.float32)
    elif code == DTYPE_CODES["bool"]:
        values = elements.astype(np.bool_)
    return values.astype(np.float64)


def compensated(numbers: Iterable[float]) -> float:
    """Neumaier's sum. After an overflow it follows IEEE addition."""
    total = error = 0.0
    for number in numbers:
        new = total + number
        if math.isfinite(new):
            error += (total - new) + number if abs(total) >= abs(number) else (number - new) + total
        total = new
    return total + error if math.isfinite(total) else total


def _block_sums(values: NDArray[np.float64]) -> list[float]:
    """The sums of the blocks of `values` (1-d, whole blocks)."""
    # A reduction over a leading axis adds whole rows in order; numpy sums only the innermost axis pairwise.
    sums: list[float] = folded(values.reshape(-1, BLOCK // LANES, LANES).sum(axis=1)).tolist()
    return sums


def folded(lanes: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sums of rows of sixteen, folded in halves."""
    width = LANES // 2
    while width:
        lanes = lanes[:, :width] + lanes[:, width : 2 * width]
        width //= 2
    return lanes[:, 0]


def chunk_sums(values: NDArray[np.float64]) -> list[float]:
    """The sums of the chunks of `values` (1-d, whole blocks)."""
    sums = _block_sums(values)
    return [compensated(sums[i : i + _BLOCKS_OF_CHUNK]) for i in range(0, len(sums), _BLOCKS_OF_CHUNK)]


def in_whole_blocks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Padded with zeros to whole blocks."""
    missing = -values.size % BLOCK
    return np.concatenate([values, np.zeros(missing)]) if missing else values


def _summary(elements: NDArray[np.generic], code: int, repeats: int = 1) -> Summary:
    """The summary of an array read in C order, as if it occurred `repeats` times in the tensor."""
    nan = positive_inf = negative_inf = zero = negative = 0
    largest, smallest = -math.inf, math.inf
    sums: list[float] = []
    square_sums: list[float] = []
    count = elements.size
    step = _CHUNKS_AT_A_TIME * CHUNK
    with np.errstate(all="ignore"):
        for first in range(0, count, step):
            values = as_float64(elements.flat[first : first + step], code)
            new_nan = int(np.count_nonzero(np.isnan(values)))
            new_positive_inf = int(np.count_nonzero(values == math.inf))
            new_negative_inf = int(np.count_nonzero(values == -math.inf))
            nan += new_nan
            positive_inf += new_positive_inf
            negative_inf += new_negative_inf
            zero += int(np.count_nonzero(values == 0))
            negative += int(np.count_nonzero(values < 0))
            if not nan:
                largest = max(largest, float(values.max()))
                smallest = min(smallest, float(values.min()))
            if not (nan or positive_inf or negative_inf):
                values = in_whole_blocks(values)
                sums += chunk_sums(values)
                square_sums += chunk_sums(values * values)
    counts = (count, nan, positive_inf, negative_inf, zero, negative, count - nan - zero - negative)
    numbers = _sums_and_extremes(counts, largest, smallest, compensated(sums), compensated(square_sums), repeats)
    return Summary(*[float(number * repeats) for number in counts] + list(numbers))


def _sums_and_extremes(
    counts: Sequence[int], largest: float, smallest: float, total: float, squares: float, repeats: int
) -> tuple[float, float, float, float]:
    _, nan, positive_inf, negative_inf, *_ = counts
    if nan:
        return math.nan, math.nan, math.nan, math.nan
    # Adding 0.0 turns -0.0 into 0.0; otherwise the sign of a zero extreme would depend on the order of the elements.
    extremes = (largest + 0.0, smallest + 0.0)
    if positive_inf and negative_inf:
        return *extremes, math.nan, math.inf
    if positive_inf or negative_inf:
        return *extremes, math.inf if positive_inf else -math.inf, math.inf
    return *extremes, total * repeats + 0.0, squares * repeats


def _simplify(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, list[tuple[int, int]], int]:
    """The same elements without properties that do not affect a summary: (offset, [(size, stride), ...], repeats), in elements.

    Dimensions of size one are dropped, repetitions (stride 0) become a factor, negative strides are read from the other end, the
    widest stride comes first, and contiguous dimensions are merged.
    """
    offset, repeats = 0, 1
    dimensions: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if stride == 0:
            repeats *= size
            continue
        if stride < 0:
            offset += (size - 1) * stride
        dimensions.append((size, abs(stride)))
    dimensions.sort(key=lambda dimension: -dimension[1])
    merged: list[tuple[int, int]] = []
    for size, stride in dimensions:
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return offset, merged, repeats


def require_elements(pointer: int, count: int) -> None:
    """Raises ValueError for a negative count, and for a null pointer to elements."""
    if count < 0:
        raise ValueError(f"a tensor cannot have {count} elements")
    if pointer == 0 and count > 0:
        raise ValueError(f"found a null pointer and {count} elements to read")


def require_adjacent(pointer: int, count: int) -> None:
    """Raises ValueError if `count` adjacent elements cannot be at this pointer."""
    require_elements(pointer, count)
    if count > _MOST_ADJACENT:
        raise ValueError("the elements extend beyond the address space")


def require_reach(shape: Sequence[int], strides: Sequence[int], item: int) -> None:
    """Raises ValueError if the bytes of all elements, or between two of them, exceed 63 bits. `item` is in bytes."""
    if 0 in shape:
        return
    extent = item + sum((size - 1) * abs(stride) * item for size, stride in zip(shape, strides, strict=True))
    if max(extent, math.prod(shape) * item) >= 1 << 63:
        raise ValueError("the elements extend beyond the address space")


def _memory(pointer: int, code: int, dimensions: Sequence[tuple[int, int]]) -> NDArray[np.generic]:
    """The elements at `pointer` as an array, without a copy; `dimensions` are (size, stride >= 0 in elements)."""
    dtype = storage_dtype(code)
    extent = sum((size - 1) * stride for size, stride in dimensions) + 1
    buffer = memoryview((ctypes.c_char * (extent * dtype.itemsize)).from_address(pointer))
    shape = tuple(size for size, _ in dimensions)
    strides = tuple(stride * dtype.itemsize for _, stride in dimensions)
    elements: NDArray[np.generic] = np.ndarray(shape, dtype, buffer, strides=strides)
    return elements


def _summary_of(pointer: int, code: int, count: int) -> Summary:
    require_adjacent(pointer, count)
    if count == 0:
        return _summary(np.empty(0, storage_dtype(code)), code)
    return _summary(_memory(pointer, code, [(count, 1)]), code)


def _summary_of_strided(pointer: int, code: int, shape: Sequence[int], strides: Sequence[int]) -> Summary:
    if len(shape) != len(strides):
        raise ValueError(f"the shape has {len(shape)} dimensions, the strides have {len(strides)}")
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"found a tensor with {len(shape)} dimensions; at most {MAX_DIMENSIONS} can be summarised")
    for size in shape:
        require_elements(1, size)
    require_reach(shape, strides, storage_dtype(code).itemsize)
    count = math.prod(shape)
    require_elements(pointer, count)
    if count == 0:
        return _summary_of(pointer, code, 0)
    offset, dimensions, repeats = _simplify(shape, strides)
    start = pointer + offset * storage_dtype(code).itemsize
    return _summary(_memory(start, code, dimensions), code, repeats)


def summarise_pointer(pointer: int, code: int, count: int, rows: NDArray[np.float64], row: int) -> None:
    """Write the summary of `count` adjacent elements at address `pointer` into `rows[row]` (rows: (N, 11) float64)."""
    rows[row] = np.array(_summary_of(pointer, code, count))


def summarise_strided_pointer(
    pointer: int,
    code: int,
    shape: tuple[int, ...],
    strides_in_elements: tuple[int, ...],
    rows: NDArray[np.float64],
    row: int,
) -> None:
    """The same for any strides, including negative, zero and overlapping ones. `pointer` is the address of element 0."""
    rows[row] = np.array(_summary_of_strided(pointer, code, shape, strides_in_elements))


class SummaryTable:
    """Summaries of many tensors, one row each, for the hot path. It grows automatically."""

    __slots__ = ("_rows",)

    def __init__(self, capacity: int = 256) -> None:
        self._rows: list[Summary] = []

    def add(self, pointer: int, code: int, count: int) -> int:
        """Summarise `count` adjacent elements at `pointer`; returns the number of the new row."""
        self._rows.append(_summary_of(pointer, code, count))
        return len(self._rows) - 1

    def add_strided(self, pointer: int, code: int, shape: tuple[int, ...], strides_in_elements: tuple[int, ...]) -> int:
        """The same for any strides."""
        self._rows.append(_summary_of_strided(pointer, code, shape, strides_in_elements))
        return len(self._rows) - 1

    def add_all(self, pointers: NDArray[np.int64], codes: NDArray[np.int64], counts: NDArray[np.int64]) -> int:
        """`add` for many tensors, whose rows are consecutive; returns the number of the first.

        Raises ValueError if the three differ in length, and adds nothing if one of the tensors cannot be read.
        """
        if not len(pointers) == len(codes) == len(counts):
            raise ValueError("pointers, codes and counts must have the same length")
        given = zip(pointers.tolist(), codes.tolist(), counts.tolist(), strict=True)
        found = [_summary_of(*each) for each in given]
        self._rows += found
        return len(self._rows) - len(found)

    def rows(self) -> NDArray[np.float64]:
        """A copy of the rows, (n, 11), columns as in SUMMARY_FIELDS."""
        return np.array(self._rows, np.float64).reshape(-1, len(SUMMARY_FIELDS))

    def clear(self) -> None:
        self._rows.clear()

    def __len__(self) -> int:
        return len(self._rows)


def instruction_set() -> str:
    return "numpy"


def instruction_sets() -> list[str]:
    return ["numpy"]


def use_instruction_set(name: str) -> bool:
    return name == "numpy"


def threads() -> int:
    return 1


def set_threads(count: int) -> None:
    """Do nothing: numpy's passes run in the calling thread, whatever `count` is."""


# The kernels that move elements, in numpy: they specify the compiled ones (native/reorder.cpp).
#
# Pointers belong to arrays that the caller keeps and whose shapes it has checked: they cannot be checked here.

# Element sizes in bytes that can be moved. Only the size of the dtype matters.
MOVED_AS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}


def _bytes_at(pointer: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(pointer))


def strided_memory(pointer: int, dtype: str, shape: Sequence[int], strides: Sequence[int]) -> NDArray[Any]:
    """The elements at `pointer` as an array, without a copy; strides are in bytes, of any sign."""
    reaches = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    before = -sum(reach for reach in reaches if reach < 0)
    after = sum(reach for reach in reaches if reach > 0)
    buffer = _bytes_at(pointer - before, before + after + np.dtype(dtype).itemsize)
    elements: NDArray[Any] = np.ndarray(tuple(shape), dtype, buffer, before, tuple(strides))
    return elements


def copy_strided_pointer(
    source: int,
    destination: int,
    item: int,
    shape: Sequence[int],
    source_strides: Sequence[int],
    destination_strides: Sequence[int],
) -> None:
    """Copy elements of `item` bytes (1, 2, 4, 8, 16) from one address to another; strides are in bytes, of any sign.

    No two indices of the destination may share memory, and source and destination may not overlap. Raises ValueError for another
    size, more than 64 dimensions, a null pointer, or a shape and strides that do not fit.
    """
    if item not in MOVED_AS:
        raise ValueError(f"found elements of {item} bytes, expected 1, 2, 4, 8 or 16")
    if not len(shape) == len(source_strides) == len(destination_strides):
        raise ValueError("the shape and the strides differ in their number of dimensions")
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"found an array with {len(shape)} dimensions; at most {MAX_DIMENSIONS} can be copied")
    if any(size < 0 for size in shape):
        raise ValueError(f"found a negative dimension: {min(shape)}")
    for strides in (source_strides, destination_strides):
        reach = sum((size - 1) * abs(stride) for size, stride in zip(shape, strides, strict=True) if size)
        if max(reach, math.prod(shape) * item) >= 2**63:
            raise ValueError("the elements extend beyond the address space")
    if math.prod(shape) == 0:
        return
    require_elements(source, 1)
    require_elements(destination, 1)
    np.copyto(
        strided_memory(destination, MOVED_AS[item], shape, destination_strides),
        strided_memory(source, MOVED_AS[item], shape, source_strides),
    )


def widen_codes(codes: int, count: int, table: int, out: int) -> None:
    """Write `table[code]` for each of `count` bytes at `codes` to `out`; both are float32, the table has 256."""
    require_elements(codes, count)
    require_elements(out, count)
    require_elements(table, 256)
    if count == 0:
        return
    values: NDArray[np.float32] = np.ndarray(256, np.float32, _bytes_at(table, 1024))
    floats: NDArray[np.float32] = np.ndarray(count, np.float32, _bytes_at(out, 4 * count))
    np.take(values, np.ndarray(count, np.uint8, _bytes_at(codes, count)), out=floats, mode="clip")
