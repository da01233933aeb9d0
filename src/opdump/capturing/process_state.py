"""The one capture of this process, and what the program has marked and named."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final

from opdump.adapters.program_marks import ModelNames, ProgramMarks
from opdump.capturing.children import Family
from opdump.capturing.dump import CaptureParts, Dump


class ProcessState:
    """What this process has to do with captures."""

    def __init__(self) -> None:
        self.running: ExitStack | None = None
        """What ends the capture that runs."""
        self.dump: Dump | None = None
        self.parts: CaptureParts | None = None
        self.awaiting: Family | None = None
        """The family of a program that has imported no framework yet."""
        self.end_child: Callable[[], None] | None = None
        """Ends the capture that began here because the parent is captured."""
        self.started: list[AbstractContextManager[Dump]] = []
        """Captures begun by `start`, for `stop`: one at most."""
        self.captured = False
        self.watches_starts = False
        self.marks = ProgramMarks()
        self.model_names = ModelNames()
        self.numbers: Iterator[int] = itertools.count()
        """Of watched tensors without a name."""
        self.inherited: list[Any] = []
        """What a forked process has of its parent's capture: it stays, so that nothing ends because it goes."""

    @property
    def controller(self) -> object:
        """What drives the capture that runs; None where none does."""
        return None if self.parts is None else self.parts.controller

    def begin(self, stack: ExitStack) -> None:
        """A capture begins, which ends with `stack`."""
        self.captured = True
        self.running = stack
        stack.callback(self._end, stack)

    def _end(self, stack: ExitStack) -> None:
        if self.running is not stack:
            return  # a forked process leaves a block of its parent's
        self.running = self.dump = self.parts = None
        self.numbers = itertools.count()

    def forked(self) -> None:
        self.inherited += [self.running, self.dump, self.end_child, *self.started]
        self.running = self.dump = self.parts = self.end_child = self.awaiting = None
        self.started.clear()


# The interpreter has one stack of dispatch modes, so there is one capture a process.
STATE: Final = ProcessState()
