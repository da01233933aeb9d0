"""Counts the steps of each model, and says when one ends.

A call of a traced function is a step of that function. What the program runs outside of such functions, and the functions whose
gradient it takes from outside, belong to the steps of the eager program: one ends where variables were updated, by an optimizer's
`apply` or by a traced function that holds an optimizer's update. From the first `manual_step` on, that alone ends steps, and all models share them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator

from opdump.adapters.tensorflow.capture import Capture, Model
from opdump.adapters.tensorflow.model_names import EAGER


class ProgramSteps:
    """The steps of one capture. `changed` is called when the eager program comes into another step."""

    def __init__(self, capture: Capture, *, manual: bool, changed: Callable[[], object]) -> None:
        self._capture = capture
        self._manual = manual
        self._changed = changed
        self._first = capture.plan.initial_iteration
        self._eager = self._first
        self._calls: Counter[int] = Counter()
        self._executions: dict[int, tuple[int, Counter[str]]] = {}
        self._orders: dict[int, Iterator[int]] = {}
        self.when_forked: Callable[[], str] = str

    @property
    def step(self) -> int:
        """The step of the eager program, and with it the iteration that the program is in."""
        return self._eager

    def wants(self, step: int) -> bool:
        """Whether the operators of a step are looked at: it is dumped, and the dump goes on."""
        return self._is_dumped(step) and not self._capture.is_over

    def _is_dumped(self, step: int) -> bool:
        return step in self._capture.plan.steps

    def of(self, model: Model, *, within_eager: bool) -> int:
        """The step that a call of a function belongs to."""
        if self._manual or within_eager:
            return self._eager
        return self._first + self._calls[model.number]

    def order(self, step: int) -> Iterator[int]:
        """Numbers the operators of a step, of whatever model."""
        if step not in self._orders:
            self._orders[step] = itertools.count()
        return self._orders[step]

    def executions(self, model: Model, step: int) -> Counter[str]:
        """How often each operator of a model was emitted in a step, by name."""
        known = self._executions.get(model.number)
        if known is None or known[0] != step:
            known = self._executions[model.number] = (step, Counter())
        return known[1]

    def called(self, model: Model, step: int, *, within_eager: bool, updates: bool) -> None:
        """A call of a function has ended. Raises DumpComplete where the last wanted step ended and the program is to end with it."""
        if not (self._manual or within_eager):
            with self._capture.lock:
                self._calls[model.number] += 1
            self._capture.ended(model.names, step)
            if self._is_dumped(step):
                self._capture.end_step(step)
        if updates:
            self.updated()

    def updated(self) -> None:
        """An optimizer has updated variables: a step of the eager program ends. Raises DumpComplete as `called` does."""
        if not self._manual:
            self._end_eager()

    def manual_step(self) -> None:
        """Ends the step of all models. Raises DumpComplete as `called` does."""
        if not self._manual:
            self._manual = True
            self._eager = max([self._eager, *(self._first + calls - 1 for calls in self._calls.values())])
        self._end_eager()

    def abandon(self) -> str:
        """Leaves a forked process: what is captured is its parent's."""
        return self.when_forked()

    def close(self) -> None:
        """Files what was begun."""
        if self._is_dumped(self._eager):
            self._capture.recorder.end_step(self._eager)

    def _end_eager(self) -> None:
        ended = self._eager
        self._eager += 1
        self._capture.ended((EAGER,), ended)
        self._orders.pop(ended - 1, None)
        self._changed()
        if self._is_dumped(ended):
            self._capture.end_step(ended)
