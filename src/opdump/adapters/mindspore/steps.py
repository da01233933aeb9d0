"""Finds the steps of a MindSpore program, in PyNative and in graph mode.

A step can end after an optimizer, after a compiled call that trains, or, in a program without optimizers, after a gradient. If nothing
trains, it can end after a network. It ends when the next network or gradient begins, so what runs in between belongs to the ended step.
Two optimizers in a row are one step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opdump.adapters.base import DumpComplete
from opdump.recorder import Recorder


class Steps:
    """Counts the steps of a program.

    When a step has ended, and before it is filed, `when_step_ends` are called with its number in the program's thread. `began` is called
    after the next step has begun. Only the outermost networks, gradients and optimizers of a thread count.
    """

    def __init__(self, recorder: Recorder, *, first: int, manual: bool, stop_after_dump: bool) -> None:
        self.step = first
        self.when_step_ends: list[Callable[[int], object]] = []
        self.began: Callable[[], None] = lambda: None
        self.has_optimizer = False
        """Whether the program has created an optimizer. If so, a gradient does not end a step."""
        self._recorder = recorder
        self._first = first
        self._manual = manual
        self._stop_after_dump = stop_after_dump
        self._may_end = False
        self._trains = False
        self._ran: set[int] = set()
        """The networks that ran in this step, by identity; not used once something trains."""
        self._here = threading.local()
        self._lock = threading.RLock()

    @property
    def is_wanted(self) -> bool:
        return self._recorder.wants(self.step)

    @property
    def _depth(self) -> int:
        """The number of networks, gradients, optimizers and compiled calls that are running in this thread."""
        return getattr(self._here, "depth", 0)

    @property
    def is_outermost(self) -> bool:
        """Whether no such call is running in this thread."""
        return self._depth == 0

    @property
    def may_count(self) -> bool:
        """Whether a network that begins now in this thread is not inside another network, an optimizer or compiled code."""
        return self._depth == 0 or (self._depth == 1 and getattr(self._here, "gradient", False))

    def manual_step(self) -> None:
        """End the current step. After the first call, steps end only here."""
        with self._lock:
            self._manual = True
            self._end()

    @contextmanager
    def network(self, identity: int, *, trains: bool = False) -> Iterator[None]:
        """A call of a network or of compiled code. `trains`: an optimizer runs inside."""
        outermost = self.is_outermost
        if outermost:
            self._begins(identity)
        elif self.may_count and getattr(self._here, "first", False):
            # A program may evaluate its network before the first gradient. That evaluation is a step of its own.
            self._here.first = False
            with self._lock:
                if identity in self._ran:
                    self._end_unless_manual()
        with self._inside():
            yield
        if outermost:
            with self._lock:
                self._trains = self._trains or trains
                self._may_end = self._may_end or trains
                if not self._trains:
                    self._ran.add(identity)

    @contextmanager
    def gradient(self) -> Iterator[None]:
        """A function that computes gradients, with its forward and backward pass."""
        outermost = self.is_outermost
        if outermost:
            self._begins(None)
            self._here.gradient = True
            self._here.first = not self._trains
        try:
            with self._inside():
                yield
        finally:
            if outermost:
                self._here.gradient = False
        if outermost:
            with self._lock:
                self._trains = True
                self._may_end = self._may_end or not self.has_optimizer

    @contextmanager
    def optimizer(self) -> Iterator[None]:
        """A call of an optimizer."""
        with self._inside():
            yield
        with self._lock:
            self.has_optimizer = self._trains = self._may_end = True

    def close(self) -> None:
        """File everything: the program or its capture has ended."""
        around = self._recorder.circumstances
        around.first_step = self._first
        around.next_step = self.step + 1 if self._may_end or self._ran else self.step
        self._file()

    @contextmanager
    def _inside(self) -> Iterator[None]:
        self._here.depth = self._depth + 1
        try:
            yield
        finally:
            self._here.depth -= 1

    def _begins(self, identity: int | None) -> None:
        with self._lock:
            if self._may_end or (not self._trains and identity in self._ran):
                self._end_unless_manual()

    def _end_unless_manual(self) -> None:
        if not self._manual:
            self._end()

    def _end(self) -> None:
        ended = self.step
        self._file()
        self.step += 1
        self._may_end = False
        self._ran.clear()
        last = self._recorder.plan.steps.last
        if self._stop_after_dump and last is not None and ended >= last:
            raise DumpComplete
        self.began()

    def _file(self) -> None:
        for told in self.when_step_ends:
            told(self.step)
        self._recorder.end_step(self.step)
