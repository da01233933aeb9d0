"""How much of the room that a dump may take on its disk is used (`max_disk`, `min_free_disk`)."""

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
"""So much may be filed before the disk is asked again how much is free."""


class Used(NamedTuple):
    """A part of the room, 1 for all of it, by the bound that has the least left."""

    share: float
    bound: Bound
    why: str


class DiskRoom:
    """`written` gives the bytes of the run, of all its processes, those that wait for the disk among them."""

    def __init__(self, plan: DumpPlan, written: Callable[[], int]) -> None:
        self._path = plan.path
        self._most = plan.max_disk
        self._least_free = plan.min_free_disk
        self.written = written
        self._free = self._free_at_first = 0
        if self._least_free is not None:
            self._free = self._free_at_first = free_bytes(plan.path)
        self._looked = written()
        """What was written when the disk was asked."""

    def look(self) -> None:
        """Asks the disk."""
        if self._least_free is not None:
            self._free = free_bytes(self._path)
        self._looked = self.written()

    def left(self) -> int:
        """How many bytes may still be written, below which a bound lies; what the first step of a small program needs is always granted."""
        written = self.written()
        left = []
        if self._most is not None:
            left.append(max(self._most, LEAST_BYTES) - written)
        if self._least_free is not None:
            left.append(self._free - (written - self._looked) - self._least_free)
        return max(min(left), 0)

    def used(self, more: int = 0) -> Used:
        """What is used once `more` bytes are filed, too."""
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
            text = f"{amounts.size(max(self._free, 0))} are free, and {amounts.size(self._least_free)} are to stay"
            found.append(Used(share, "min_free_disk", text))
        return max(found)


def free_bytes(path: Path) -> int:
    """What a user without privileges may still write where `path` is, or is going to be."""
    place = Path(path)
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free
