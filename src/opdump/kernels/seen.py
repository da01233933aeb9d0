"""Remembers tensors that were read, so that a tensor is not read again unless it was written: the twin of the compiled
`SeenTensors`.

Writes are detected by the version that a framework counts, and by a fingerprint of the memory. The fingerprint is a sample: the
first and the last 8 bytes, and 8 at a scattered offset of each page of 4 KiB; at least 64 samples of small memory, and at most
1024 of large memory.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

_PAGE: Final = 4096
_FEWEST, _MOST = 64, 1024
WORD: Final = 8
"""Bytes of a sample, and the minimum size for a fingerprint."""
View = tuple[int, str, tuple[int, ...], tuple[int, ...]]
"""Address, dtype, shape, strides."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """The state of a view when it was read, and the place of its summary."""

    version: int
    fingerprint: bytes
    row: int


class SeenTensors:
    """Sightings of views by the identity of their storage; `len` counts storages. Views of fewer than `least_bytes` are ignored."""

    def __init__(self, least_bytes: int) -> None:
        self.least_bytes = least_bytes
        self._by_storage: dict[int, dict[View, Sighting]] = {}

    def find(self, storage: int, view: View, version: int, fingerprint: bytes) -> Sighting | None:
        """The sighting of this view at this version with this fingerprint."""
        before = self._by_storage.get(storage, {}).get(view)
        return before if before is not None and (before.version, before.fingerprint) == (version, fingerprint) else None

    def add(self, storage: int, view: View, sighting: Sighting) -> None:
        self._by_storage.setdefault(storage, {})[view] = sighting

    def forget(self, storage: int) -> None:
        """Forget a storage that was written."""
        self._by_storage.pop(storage, None)

    def clear(self) -> None:
        """Forget everything: something unknown was written, or the rows and digests no longer exist."""
        self._by_storage.clear()

    def __len__(self) -> int:
        return len(self._by_storage)


def fingerprint_of(address: int, byte_count: int) -> bytes:
    """The fingerprint of `byte_count` bytes, at least 8."""
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * byte_count).from_address(address))
    return bytes(memory[_places(byte_count)])


@lru_cache(maxsize=256)
def _places(byte_count: int) -> npt.NDArray[np.int64]:
    last = byte_count - WORD
    samples = min(max(byte_count // _PAGE, _FEWEST), _MOST)
    stride = max(last // samples, 1)
    scatter = np.random.default_rng(byte_count).integers(0, stride, samples)
    begins = np.minimum(np.arange(samples) * stride + scatter, last)
    begins = np.concatenate(([0, last], begins))
    places: npt.NDArray[np.int64] = begins[:, None] + np.arange(WORD)
    return places
