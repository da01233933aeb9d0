"""Digests of a tensor's raw bytes (MindSpore's `md5` and `hash` statistics).

Both are hexadecimal, of the elements in C order, little-endian, before any widening. No elements have the digest of no bytes.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt

# MindSpore hashes in slices of this many elements and then hashes the slices' hexadecimal digests.
_SLICE = 20480


def md5(array: npt.NDArray[Any]) -> str:
    """MD5 of the whole buffer."""
    return hashlib.md5(_bytes_of(array).data, usedforsecurity=False).hexdigest()


def sha1(array: npt.NDArray[Any]) -> str:
    """SHA1 of the buffer up to 20480 elements, of the joined digests of slices of 20480 elements beyond."""
    flat = _bytes_of(array)
    if array.size <= _SLICE:
        return hashlib.sha1(flat.data, usedforsecurity=False).hexdigest()
    width = _SLICE * array.dtype.itemsize
    joined = "".join(
        hashlib.sha1(flat[start : start + width].data, usedforsecurity=False).hexdigest()
        for start in range(0, flat.size, width)
    )
    return hashlib.sha1(joined.encode(), usedforsecurity=False).hexdigest()


def _bytes_of(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    import numpy as np

    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little).reshape(-1).view(np.uint8)
