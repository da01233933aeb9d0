"""The capture of this process, and what the program has marked and named."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final

from opdump.adapters.program_marks import ModelNames, ProgramMarks
from opdump.capturing.children import Family
from opdump.capturing.dump import CaptureParts, Dump


class ProcessState:
    """The state of this process that concerns captures."""

    def __init__(self) -> None:
        self.running: ExitStack | None = None
        """Ends the running capture."""
        self.dump: Dump | None = None
        self.parts: CaptureParts | None = None
        self.awaiting: Family | None = None
        """The family of a program that has not imported a framework yet."""
        self.end_child: Callable[[], None] | None = None
        """Ends the capture of this process if it began because its parent is captured."""
        self.started: list[AbstractContextManager[Dump]] = []
        """Captures begun by `start`, for `stop`: at most one."""
        self.captured = False
        self.watches_starts = False
        self.marks = ProgramMarks()
        self.model_names = ModelNames()
        self.numbers: Iterator[int] = itertools.count()
        """Numbers for watched tensors without a name."""
        self.inherited: list[Any] = []
        """What a forked process inherited of its parent's capture. It is kept alive, so that its destruction ends nothing."""

    @property
    def controller(self) -> object:
        """The controller of the running capture, or None."""
        return None if self.parts is None else self.parts.controller

    def begin(self, stack: ExitStack) -> None:
        """Register a capture that ends when `stack` is closed."""
        self.captured = True
        self.running = stack
        stack.callback(self._end, stack)

    def _end(self, stack: ExitStack) -> None:
        if self.running is not stack:
            return  # a forked process leaves a block of its parent
        self.running = self.dump = self.parts = None
        self.numbers = itertools.count()

    def forked(self) -> None:
        self.inherited += [self.running, self.dump, self.end_child, *self.started]
        self.running = self.dump = self.parts = self.end_child = self.awaiting = None
        self.started.clear()


# The interpreter has one stack of dispatch modes, so a process has one capture.
STATE: Final = ProcessState()
