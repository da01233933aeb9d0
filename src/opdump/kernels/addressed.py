"""Arrays in the form that kernels take: an address, a code of an element type, strides in elements."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from opdump.errors import UnsupportedDtypeError
from opdump.kernels.summary import DTYPE_CODES


class Addressed(NamedTuple):
    """Elements of any shape at an address, which is valid while `array` exists."""

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
    """The array itself, or a copy if its byte order is not the machine's, or if its strides are not multiples of the element
    size.

    `dtype` names the element type if numpy cannot. Raises UnsupportedDtypeError for types that are not in DTYPE_CODES.
    """
    array = np.asarray(array)  # a numpy scalar has a type but no memory
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
