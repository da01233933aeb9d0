"""Digests of many tensors, in hexadecimal: the twin of the compiled `DigestBatch`, used if the compiled module is missing.

| name | |
|---|---|
| `md5` | MD5 (RFC 1321) of the bytes |
| `hash` | SHA-1 (FIPS 180-4) of the bytes up to 20480 elements; beyond that, of the joined digests of slices of 20480 elements, as in MindSpore |
| `xxh3` | XXH3 with 128 bits: shows equality, but gives no protection against deliberate collisions |

The compiled one copies the bytes for MD5 and SHA-1 and hashes sixteen tensors or slices at once, one in each lane of the processor, if there are enough
of them, which is five to ten times as fast as one after another. XXH3 needs no batch: it runs at the speed of memory.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Sequence
from typing import Final

from opdump.kernels.append_file import xxh3_128
from opdump.kernels.reference import require_adjacent

SHA1_SLICE: Final = 20480
"""Number of elements."""


class DigestBatch:
    """Stores the elements of tensors as they are now; their digests are requested later.

    `names` are some of the names in the table above; ValueError for another. `capacity` is the number of tensor bytes that may
    wait to be hashed, beside one more tensor; `with_instructions` enables SHA-1 instructions of the processor. This twin hashes
    immediately and ignores both.
    """

    def __init__(self, names: Sequence[str], capacity: int = 1 << 28, with_instructions: bool = True) -> None:
        for name in names:
            if name not in _DIGESTS:
                raise ValueError(f"found digest {name}, expected md5, hash or xxh3")
        self._names = tuple(names)
        self._digests: list[dict[str, str]] = []
        self._rows: dict[int, dict[str, str]] = {}

    def add(self, pointer: int, byte_count: int, item: int = 1, row: int = -1) -> int:
        """Add a tensor of `byte_count` bytes at an address, with `item` bytes per element; returns its number. `row`: the row of
        its summary, for `by_row`.

        Raises ValueError for a negative count, one that is not a multiple of `item`, and a null address.
        """
        require_adjacent(pointer, byte_count)
        if item < 1 or byte_count % item:
            raise ValueError(f"{byte_count} bytes cannot be divided into elements of {item} bytes")
        found = memoryview((ctypes.c_char * byte_count).from_address(pointer) if byte_count else b"").cast("B")
        self._digests.append({name: _DIGESTS[name](found, item) for name in self._names})
        if row >= 0:
            self._rows[row] = self._digests[-1]
        return len(self._digests) - 1

    def digests(self, number: int) -> dict[str, str]:
        """The digests of a tensor by name, in the order of the names. Raises IndexError for an unknown number."""
        if number >= len(self._digests):
            raise IndexError(f"found tensor {number}; the batch has {len(self._digests)} tensors")
        return dict(self._digests[number])

    def by_row(self) -> dict[int, dict[str, str]]:
        """The digests of all tensors whose summary has a row, by that row."""
        return {row: dict(digests) for row, digests in self._rows.items()}

    def clear(self) -> None:
        """Forget everything; numbers start at 0 again."""
        self._digests.clear()
        self._rows.clear()

    def __len__(self) -> int:
        return len(self._digests)


def _md5(data: memoryview, _: int) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _sha1(data: memoryview, item: int) -> str:
    width = SHA1_SLICE * item
    if len(data) <= width:
        return hashlib.sha1(data, usedforsecurity=False).hexdigest()
    slices = (data[start : start + width] for start in range(0, len(data), width))
    joined = "".join(hashlib.sha1(each, usedforsecurity=False).hexdigest() for each in slices)
    return hashlib.sha1(joined.encode(), usedforsecurity=False).hexdigest()


_DIGESTS: Final[dict[str, Callable[[memoryview, int], str]]] = {
    "md5": _md5,
    "hash": _sha1,
    "xxh3": lambda data, _: xxh3_128(data),
}
