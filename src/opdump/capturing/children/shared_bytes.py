"""Counts what all processes of a run have written, for a limit that they share (`max_disk`)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from opdump.capturing.children.family import Family

_PREFIX: Final = "bytes_"
_LOOK_EACH_SECONDS: Final = 0.5


class SharedBytes:
    """Publishes the bytes of this process in the directory of the family and reads those of the others, at most twice per second."""

    def __init__(
        self, family: Family, token: str, own: Callable[[], int], now: Callable[[], float] = time.monotonic
    ) -> None:
        """`own` returns the bytes of this process. `token` distinguishes it from another process with the same ID."""
        self._directory = family.directory if family.is_there else None
        self._name = f"{_PREFIX}{os.getpid()}_{token}"
        self._own = own
        self._now = now
        self._next = 0.0
        self._others = 0

    def of_others(self) -> int:
        """Return the bytes that the other processes had written at the last exchange."""
        if self._directory is not None and self._now() >= self._next:
            self._next = self._now() + _LOOK_EACH_SECONDS
            self._exchange(self._directory)
        return self._others

    def _exchange(self, directory: Path) -> None:
        with suppress(OSError, ValueError):  # the run has ended, or another process is writing its file
            temporary = directory / f".{self._name}"
            temporary.write_text(str(self._own()))
            temporary.replace(directory / self._name)
            self._others = sum(
                int((directory / name).read_text())
                for name in os.listdir(directory)
                if name.startswith(_PREFIX) and name != self._name
            )
