"""The steps of one model. Threads may run it at the same time, and a run that fails is none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class StepCount:
    """Numbers runs from `first` on: each that succeeds has a number of its own, and none is left out."""

    def __init__(self, first: int) -> None:
        self._next = first
        self._running: set[int] = set()
        self._done: set[int] = set()
        self._lock = threading.Lock()

    @contextmanager
    def counted(self) -> Iterator[int]:
        """The number of the run that the block makes; the next run has it again where the block raises."""
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
