"""Arrays of every kind that numpy can make, for hypothesis.

They have any bytes, at any address, with any strides, in either byte order, and may be read-only. Their memory borders
on an unreadable page: a kernel that reads one byte too many, before or after, crashes.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from opdump.kernels import DTYPE_CODES

Array = NDArray[Any]

_ROOM: Final = 1 << 18
_MOST_ELEMENTS: Final = 3000
_SIZES: Final = st.sampled_from([0, 1, 1, 2, 3, 5, 8, 17, 33, 130])
_SPECIAL: Final = (
    *(0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 65504.0, 3.4028235e38, 1e-40, 2.0**-149, 1.7976931348623157e308),
    *(5e-324, 127, 255, 32767, 2.0**31, 2.0**53, 2.0**63),
)


class GuardedMemory:
    """Memory between two unreadable pages. The addresses of one object stay the same."""

    def __init__(self) -> None:
        page = mmap.PAGESIZE
        self._memory = mmap.mmap(-1, _ROOM + 2 * page)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        for begin in (self._address, self._address + page + _ROOM):
            if protect(ctypes.c_void_p(begin), ctypes.c_size_t(page), 0) != 0:
                raise OSError(ctypes.get_errno(), "the page cannot be protected")
        self._bytes = np.frombuffer(self._memory, np.uint8, _ROOM, page)

    def put(self, content: NDArray[np.uint8], *, at_end: bool) -> NDArray[np.uint8]:
        """Store the bytes directly after the first page, or directly before the second."""
        if content.size > _ROOM:
            raise ValueError(f"{content.size} bytes do not fit into {_ROOM}")
        place: NDArray[np.uint8] = self._bytes[_ROOM - content.size :] if at_end else self._bytes[: content.size]
        place[:] = content
        return place


def storage(dtype: str) -> np.dtype[Any]:
    """The numpy dtype that stores elements of this type."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, ...]:
    found: list[int] = []
    for _ in range(draw(st.integers(0, 5))):
        size = draw(_SIZES)
        found.append(size if np.prod([*found, size]) <= _MOST_ELEMENTS else 1)
    return tuple(found)


@st.composite
def odd_arrays(draw: st.DrawFn, memory: GuardedMemory, dtype: str, shape: Sequence[int]) -> Array:
    """An array of this shape and type: strides in bytes may be negative, zero, overlapping, or no multiple of the
    element size.
    """
    kind = storage(dtype)
    order = draw(st.permutations(range(len(shape))))
    strides = [0] * len(shape)
    step = kind.itemsize
    for axis in order:
        strides[axis] = step * draw(st.sampled_from([1, 1, 1, 2, -1, -1, 0]))
        if draw(st.integers(0, 9)) == 0:
            strides[axis] += draw(st.integers(1, 3))  # between elements
        step = max(step, min(abs(strides[axis]) * max(1, shape[axis]), _ROOM // 64))
    reaches = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True) if size]
    before, after = -sum(min(0, reach) for reach in reaches), sum(max(0, reach) for reach in reaches)
    while before + kind.itemsize + after > _ROOM:
        strides = [stride // 2 // kind.itemsize * kind.itemsize for stride in strides]
        reaches = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True) if size]
        before, after = -sum(min(0, reach) for reach in reaches), sum(max(0, reach) for reach in reaches)
    content = _content(dtype, before + kind.itemsize + after, draw(st.integers(0, 2**32 - 1)))
    if draw(st.booleans()):
        kind = kind.newbyteorder()
    if 0 in shape:
        empty: Array = np.ndarray(tuple(shape), kind)
        return empty
    array: Array = np.ndarray(
        tuple(shape), kind, memory.put(content, at_end=draw(st.booleans())).data, before, tuple(strides)
    )
    array.flags.writeable = draw(st.booleans())
    return array


def _content(dtype: str, size: int, seed: int) -> NDArray[np.uint8]:
    """Bytes that are ordinary numbers, special ones, or arbitrary."""
    numbers = np.random.default_rng(seed)
    found = numbers.integers(0, 256, size, np.uint8)
    if seed % 3 == 0 or dtype == "bool":
        return found
    with np.errstate(all="ignore"):
        values = numbers.standard_normal(size) * 100
        if seed % 3 == 1:
            values[:: 1 + seed % 7] = numbers.choice(np.array(_SPECIAL), values[:: 1 + seed % 7].size)
        if dtype == "bfloat16":
            elements: Array = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        elif storage(dtype).kind in "iu":
            limits = np.iinfo(dtype)
            elements = np.clip(np.nan_to_num(values), float(limits.min) / 2, float(limits.max) / 2).astype(dtype)
        else:
            elements = values.astype(dtype)
    return elements.view(np.uint8)[:size]


def plain(array: Array) -> Array:
    """The same elements, contiguous, aligned and in native byte order."""
    return np.array(array, array.dtype.newbyteorder("="), order="C", copy=True)


DTYPES: Final = (*DTYPE_CODES, "complex64", "complex128")
