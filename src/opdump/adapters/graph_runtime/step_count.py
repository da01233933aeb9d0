"""Numbers the runs of a graph as its steps. Several threads may run it at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class StepCount:
    """Numbers runs, starting with `first`. Numbers are unique and have no gaps."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._next = first
        self._running: set[int] = set()
        self._done: set[int] = set()
        self._lock = threading.Lock()

    @property
    def ended(self) -> int:
        """The number of finished runs before the first one that is still running."""
        return self._next - self._first

    def take(self) -> int:
        """The number of a run that counts as a step even if it fails."""
        with self.counted() as step:
            return step

    @contextmanager
    def counted(self) -> Iterator[int]:
        """The number of the run in the block. If the block raises, the next run gets the same number, because a failed run is not a step."""
        with self._lock:
            step = self._next
            while step in self._running or step in self._done:
                step += 1
            self._running.add(step)
        try:
            yield step
        except BaseException:
            with self._lock:
                self._running.discard(step)
            raise
        with self._lock:
            self._running.discard(step)
            self._done.add(step)
            while self._next in self._done:
                self._done.discard(self._next)
                self._next += 1
