"""How much of the allowed disk space a dump has used (`max_disk`, `min_free_disk`)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from opdump import amounts
from opdump.degradation import Bound
from opdump.plan import DumpPlan

LEAST_BYTES: Final = 256_000
"""A smaller `max_disk` ends the dump after the first step but does not truncate that step: an index without rows already has 50 kB."""
_LOOK_EACH_BYTES: Final = 64_000_000
"""Bytes that may be written before the free space of the disk is measured again."""


class Used(NamedTuple):
    """The used share of the allowed space, where 1 is all of it, for the limit that is closest."""

    share: float
    bound: Bound
    why: str


class DiskRoom:
    """Compares the bytes written with the limits. `written` returns the bytes of the run in all its processes, including those still waiting for the
    disk.
    """

    def __init__(self, plan: DumpPlan, written: Callable[[], int]) -> None:
        self._path = plan.path
        self._most = plan.max_disk
        self._least_free = plan.min_free_disk
        self.written = written
        self._free = self._free_at_first = 0
        if self._least_free is not None:
            self._free = self._free_at_first = free_bytes(plan.path)
        self._looked = written()
        """Bytes written when the free space was last measured."""

    def look(self) -> None:
        """Measure the free space of the disk."""
        if self._least_free is not None:
            self._free = free_bytes(self._path)
        self._looked = self.written()

    def left(self) -> int:
        """Return how many bytes may still be written before a limit is reached, never counting less than LEAST_BYTES for the whole dump."""
        written = self.written()
        left = []
        if self._most is not None:
            left.append(max(self._most, LEAST_BYTES) - written)
        if self._least_free is not None:
            left.append(self._free - (written - self._looked) - self._least_free)
        return max(min(left), 0)

    def used(self, more: int = 0) -> Used:
        """Return the used share after `more` bytes have been written."""
        written = self.written()
        if self._least_free is not None and written + more - self._looked > _LOOK_EACH_BYTES:
            self.look()
        found = []
        if self._most is not None:
            share = (written + more) / self._most
            text = f"{amounts.size(written)} of {amounts.size(self._most)} are used"
            found.append(Used(share, "max_disk", text))
        if self._least_free is not None:
            free = self._free - (written + more - self._looked)
            room = self._free_at_first - self._least_free
            share = (self._free_at_first - free) / room if room > 0 else 1.0
            text = f"{amounts.size(max(self._free, 0))} are free, and {amounts.size(self._least_free)} must stay free"
            found.append(Used(share, "min_free_disk", text))
        return max(found)


def free_bytes(path: Path) -> int:
    """Return how many bytes an unprivileged user may still write at `path`, which need not exist yet."""
    place = Path(path)
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free
