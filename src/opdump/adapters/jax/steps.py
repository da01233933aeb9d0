"""Which step of the program it is.

A step begins when a function of the program is called that ran in the step before it already. Where the program has functions that give
back what they were given, updated, only these count: evaluation between two updates belongs to the step.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

from opdump.adapters.base import DumpComplete
from opdump.adapters.jax.functions import Function
from opdump.recorder import Recorder


class Steps:
    """Counts the steps of a program and files each when the next begins. `began` is called when one has begun."""

    def __init__(self, recorder: Recorder, *, first: int, manual: bool, stop_after_dump: bool) -> None:
        self.step = first
        self.began: Callable[[], None] = lambda: None
        self.executions: dict[int, Counter[str]] = {}
        """How often each operator ran in this step, by the number of its graph."""
        self.order = itertools.count()
        self._recorder = recorder
        self._manual = manual
        self._stop_after_dump = stop_after_dump
        self._ran: set[tuple[object, ...]] = set()
        self._has_updates = False
        self._unfiled: int | None = None
        """The step that has ended and is not filed yet."""

    @property
    def is_wanted(self) -> bool:
        return self._recorder.wants(self.step)

    @property
    def next_is_wanted(self) -> bool:
        """Whether the next call that begins a step is to be seen before it runs."""
        return self._recorder.wants(self.step + 1)

    def counts(self, function: Function) -> bool:
        """Whether a call of the function may begin a step."""
        return not (self._manual or (self._has_updates and not function.returns_state))

    @property
    def are_over(self) -> bool:
        """No later step is wanted."""
        last = self._recorder.plan.steps.last
        return self._recorder.is_over or (last is not None and self.step > last)

    def manual_step(self) -> None:
        """Ends the current step; from the first call on nothing else ends one."""
        self._manual = True
        self._end()
        self.file()

    def calls(self, function: Function) -> None:
        """The program is about to call one of its functions. Raises DumpComplete where the program is to end here.

        Where that begins a step, the one before is to be filed (`file`) before anything else is recorded.
        """
        if not self.counts(function):
            return
        if function.returns_state and not self._has_updates:
            self._has_updates = True
            self._ran.clear()
        if function.key in self._ran:
            self._end()
        self._ran.add(function.key)

    def file(self) -> None:
        """Files the step that has ended, if one has: the caller finds the time when JAX has something to do."""
        if self._unfiled is not None:
            ended, self._unfiled = self._unfiled, None
            self._recorder.end_step(ended)

    def close(self) -> None:
        """The program, or its capture, has ended."""
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
