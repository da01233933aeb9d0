"""Arrays as the kernels take them: an address, a code of an element type, strides in elements."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from opdump.errors import UnsupportedDtypeError
from opdump.kernels.summary import DTYPE_CODES


class Addressed(NamedTuple):
    """Elements of any shape at their address, which is good while `array` is."""

    array: NDArray[np.generic]
    dtype: str
    strides: tuple[int, ...]

    @property
    def address(self) -> int:
        return self.array.ctypes.data

    @property
    def code(self) -> int:
        return DTYPE_CODES[self.dtype]


def addressed(array: NDArray[np.generic], dtype: str | None = None) -> Addressed:
    """The array itself, or a copy where its byte order is not the machine's, or its strides no multiples of an element.

    `dtype` names the element type where numpy cannot. Raises UnsupportedDtypeError for what is not in DTYPE_CODES.
    """
    array = np.asarray(array)  # a scalar of numpy has a type but no memory
    name = array.dtype.name if dtype is None else dtype
    if name not in DTYPE_CODES:
        raise UnsupportedDtypeError(f"elements of type {name} have no summary; these have: {', '.join(DTYPE_CODES)}")
    size = np.dtype(np.uint16 if name == "bfloat16" else name).itemsize
    if array.dtype.itemsize != size:
        raise UnsupportedDtypeError(
            f"an array of {array.dtype} cannot hold {name}: its elements have {array.dtype.itemsize} bytes, not {size}"
        )
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if any(stride % size for stride in array.strides):
        array = np.ascontiguousarray(array)
    return Addressed(array, name, tuple(stride // size for stride in array.strides))
