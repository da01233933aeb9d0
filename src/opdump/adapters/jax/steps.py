"""Finds the steps of a program.

A step begins when the program calls a function that has already run in the current step. If some functions return updated arguments, only
these count: evaluation between two updates belongs to the step.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

from opdump.adapters.base import DumpComplete
from opdump.adapters.jax.functions import Function
from opdump.recorder import Recorder


class Steps:
    """Counts the steps of a program, and files each step when the next one begins. `began` is called after a step has begun."""

    def __init__(self, recorder: Recorder, *, first: int, manual: bool, stop_after_dump: bool) -> None:
        self.step = first
        self.began: Callable[[], None] = lambda: None
        self.executions: dict[int, Counter[str]] = {}
        """The number of executions of each operator in this step, by graph number."""
        self.order = itertools.count()
        self._recorder = recorder
        self._manual = manual
        self._stop_after_dump = stop_after_dump
        self._ran: set[tuple[object, ...]] = set()
        self._has_updates = False
        self._unfiled: int | None = None
        """A step that has ended but is not filed yet."""

    @property
    def is_wanted(self) -> bool:
        return self._recorder.wants(self.step)

    @property
    def next_is_wanted(self) -> bool:
        """Whether the next step is recorded. The call that begins it must then be intercepted before it runs."""
        return self._recorder.wants(self.step + 1)

    def counts(self, function: Function) -> bool:
        """Whether a call of the function may begin a step."""
        return not (self._manual or (self._has_updates and not function.returns_state))

    @property
    def are_over(self) -> bool:
        """Whether no further step is recorded."""
        last = self._recorder.plan.steps.last
        return self._recorder.is_over or (last is not None and self.step > last)

    def manual_step(self) -> None:
        """End the current step. After the first call, steps end only here."""
        self._manual = True
        self._end()
        self.file()

    def calls(self, function: Function) -> None:
        """Note that the program is about to call one of its functions. Raises DumpComplete if the program must end here.

        If the call begins a step, the caller must file the previous one (`file`) before it records anything else.
        """
        if not self.counts(function):
            return
        # The first function that updates its arguments: from here on only such functions count, so forget the others.
        if function.returns_state and not self._has_updates:
            self._has_updates = True
            self._ran.clear()
        if function.key in self._ran:
            self._end()
        self._ran.add(function.key)

    def file(self) -> None:
        """File a step that has ended. Callers do this while JAX computes, so that the program waits less."""
        if self._unfiled is not None:
            ended, self._unfiled = self._unfiled, None
            self._recorder.end_step(ended)

    def close(self) -> None:
        """File everything: the program or its capture has ended."""
        self.file()
        self._recorder.end_step(self.step)

    def _end(self) -> None:
        self.file()
        ended = self._unfiled = self.step
        self.step += 1
        self._ran.clear()
        self.executions.clear()
        self.order = itertools.count()
        last = self._recorder.plan.steps.last
        if self._stop_after_dump and last is not None and ended >= last:
            self.file()
            raise DumpComplete
        self.began()
