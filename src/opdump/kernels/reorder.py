"""The kernels that move elements, in numpy: they specify the compiled ones (native/reorder.cpp).

Pointers belong to arrays that the caller keeps and whose shapes it has checked: they cannot be checked here.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opdump.kernels.reference import MAX_DIMENSIONS, require_elements

# Element sizes in bytes that can be moved. Only the size of the dtype matters.
MOVED_AS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}


def _memory(pointer: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(pointer))


def strided_memory(pointer: int, dtype: str, shape: Sequence[int], strides: Sequence[int]) -> NDArray[Any]:
    """The elements at `pointer` as an array, without a copy; strides are in bytes, of any sign."""
    reaches = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    before = -sum(reach for reach in reaches if reach < 0)
    after = sum(reach for reach in reaches if reach > 0)
    buffer = _memory(pointer - before, before + after + np.dtype(dtype).itemsize)
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
        raise ValueError(f"elements have 1, 2, 4, 8 or 16 bytes, not {item}")
    if not len(shape) == len(source_strides) == len(destination_strides):
        raise ValueError("the shape and the strides have not the same number of dimensions")
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"an array of {len(shape)} dimensions has more than the {MAX_DIMENSIONS} that can be copied")
    if any(size < 0 for size in shape):
        raise ValueError(f"no dimension is negative: {min(shape)}")
    for strides in (source_strides, destination_strides):
        reach = sum((size - 1) * abs(stride) for size, stride in zip(shape, strides, strict=True) if size)
        if max(reach, math.prod(shape) * item) >= 2**63:
            raise ValueError("the elements reach beyond any memory")
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
    values: NDArray[np.float32] = np.ndarray(256, np.float32, _memory(table, 1024))
    floats: NDArray[np.float32] = np.ndarray(count, np.float32, _memory(out, 4 * count))
    np.take(values, np.ndarray(count, np.uint8, _memory(codes, count)), out=floats, mode="clip")
