"""Which step of a MindSpore program it is, in PyNative and in graph mode.

A step may end when an optimizer has run, or a compiled call that trains, or a gradient in a program without optimizers. Where nothing trains,
it may end when a network has run. It does end when the next network or gradient begins: what runs between the two belongs to the step that
was. Two optimizers in a row are one step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opdump.adapters.base import DumpComplete
from opdump.recorder import Recorder


class Steps:
    """Counts the steps of a program.

    `when_step_ends` are called with its number in the program's thread when a step has ended, before it is filed; `began` once the next
    one has begun. Calls of networks, gradients and optimizers are counted where no other is running in their thread.
    """

    def __init__(self, recorder: Recorder, *, first: int, manual: bool, stop_after_dump: bool) -> None:
        self.step = first
        self.when_step_ends: list[Callable[[int], object]] = []
        self.began: Callable[[], None] = lambda: None
        self.has_optimizer = False
        """Whether the program has made one: then a gradient alone ends no step."""
        self._recorder = recorder
        self._first = first
        self._manual = manual
        self._stop_after_dump = stop_after_dump
        self._may_end = False
        self._trains = False
        self._ran: set[int] = set()
        """The networks that ran in this step, by identity, as long as nothing trains."""
        self._here = threading.local()
        self._lock = threading.RLock()

    @property
    def is_wanted(self) -> bool:
        return self._recorder.wants(self.step)

    @property
    def _depth(self) -> int:
        """Networks, gradients, optimizers and compiled calls that run in this thread."""
        return getattr(self._here, "depth", 0)

    @property
    def is_outermost(self) -> bool:
        """Whether what begins now in this thread is part of nothing."""
        return self._depth == 0

    @property
    def may_count(self) -> bool:
        """Whether a network that begins now in this thread is part of no other, nor of an optimizer or of compiled code."""
        return self._depth == 0 or (self._depth == 1 and getattr(self._here, "gradient", False))

    def manual_step(self) -> None:
        """Ends the current step; from the first call on nothing else ends one."""
        with self._lock:
            self._manual = True
            self._end()

    @contextmanager
    def network(self, identity: int, *, trains: bool = False) -> Iterator[None]:
        """A call of a network, or of compiled code; `trains` where an optimizer runs in it."""
        outermost = self.is_outermost
        if outermost:
            self._begins(identity)
        elif self.may_count and getattr(self._here, "first", False):
            # Evaluation comes first in many programs.
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
        """A function that computes gradients: its forward and its backward."""
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
        """The program, or its capture, has ended; what is recorded is filed."""
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
