"""Tensors that were read, so that one that nothing has written since is not read again: the twin of the compiled `SeenTensors`.

Of a write that nobody tells of, the version that a framework counts and a fingerprint of the memory bear witness. The fingerprint is a sample:
the first and the last 8 bytes, and 8 at a scattered place of each page of 4 KiB, of small memory 64 at least, of large memory 1024 at most.
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
"""Bytes of a sample, and the least that a fingerprint can be taken of."""
View = tuple[int, str, tuple[int, ...], tuple[int, ...]]
"""Address, dtype, shape, strides."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a view was when it was read, and where its summary is."""

    version: int
    fingerprint: bytes
    row: int


class SeenTensors:
    """Sightings of views by the identity of their storage; `len` counts storages. Views of fewer than `least_bytes` are not looked for."""

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
        """Something wrote into this storage."""
        self._by_storage.pop(storage, None)

    def clear(self) -> None:
        """Something wrote, and nobody knows where; or the rows and digests are gone."""
        self._by_storage.clear()

    def __len__(self) -> int:
        return len(self._by_storage)


def fingerprint_of(address: int, byte_count: int) -> bytes:
    """The sample of so much memory, 8 bytes or more."""
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
