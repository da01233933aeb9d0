"""Digests of a tensor's raw bytes (MindSpore's `md5` and `hash` statistics)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from opdump.statistics.categories import canonical_category

# MindSpore hashes in slices of this many elements and then hashes the slices' hexadecimal digests.
_SLICE = 20480


def digest(category: str, array: npt.NDArray[Any]) -> str:
    """The hexadecimal digest of the elements in C order, little-endian, before any widening.

    `md5` covers the buffer whole. `hash` is SHA1: of the buffer up to 20480 elements, of the joined digests of slices
    of 20480 elements beyond. An array without elements has the digest of no bytes.

    Raises KeyError for a category that is no digest.
    """
    kind = canonical_category(category)
    if kind not in ("md5", "hash"):
        raise KeyError(f"{category!r} is no digest; expected md5, hash, hash:md5 or hash:sha1")
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    flat = np.ascontiguousarray(little).reshape(-1).view(np.uint8)
    if kind == "md5":
        return hashlib.md5(flat.data, usedforsecurity=False).hexdigest()
    if array.size <= _SLICE:
        return hashlib.sha1(flat.data, usedforsecurity=False).hexdigest()
    width = _SLICE * array.dtype.itemsize
    joined = "".join(
        hashlib.sha1(flat[start : start + width].data, usedforsecurity=False).hexdigest()
        for start in range(0, flat.size, width)
    )
    return hashlib.sha1(joined.encode(), usedforsecurity=False).hexdigest()


def digests_of(array: npt.NDArray[Any], categories: Iterable[str]) -> dict[str, str]:
    """The digests among `categories`, by canonical name; empty where none is wanted."""
    wanted = {canonical_category(name) for name in categories} & {"md5", "hash"}
    return {name: digest(name, array) for name in sorted(wanted)}
