"""Digests of a tensor's raw bytes: MindSpore's `md5` and `hash` statistics, and `xxh3`.

All are hexadecimal, of the elements in C order, little-endian, before any widening. The digest of no elements is that of no
bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt


def md5(array: npt.NDArray[Any]) -> str:
    """MD5 of the whole buffer."""
    import hashlib  # only if a digest is computed: the import starts OpenSSL

    return hashlib.md5(_elements_of(array).view("u1").data, usedforsecurity=False).hexdigest()


def sha1(array: npt.NDArray[Any]) -> str:
    """SHA1 of a buffer of up to 20480 elements; of a larger one, SHA1 of the joined digests of slices of 20480 elements."""
    return _by_kernel("hash", array)


def xxh3(array: npt.NDArray[Any]) -> str:
    """XXH3 with 128 bits of the whole buffer, as `xxh128sum` prints it: shows whether two tensors are equal, but is not a secure
    hash.
    """
    return _by_kernel("xxh3", array)


def _by_kernel(name: str, array: npt.NDArray[Any]) -> str:
    from opdump.kernels import DigestBatch  # only if a digest is computed: kernels import numpy

    elements = _elements_of(array)
    batch = DigestBatch((name,))
    return batch.digests(batch.add(elements.ctypes.data, elements.nbytes, elements.itemsize))[name]


def _elements_of(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    import numpy as np

    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little).reshape(-1)
