"""Counts the steps of each model, and detects when one ends.

A call of a traced function is a step of that function. Operators outside such functions, and functions whose gradient is computed
outside, belong to the steps of the eager program. Such a step ends when variables were updated and the next forward begins:

- at the return of an optimizer, or of a traced function that updates variables; if another optimizer is applied or a gradient is computed
  before the next forward, the ended step continues (`reopened`)
- at the next forward, if the program assigned to a variable for which it had requested a gradient

A forward begins with a `GradientTape`, and with a function that computes gradients itself. From the first `manual_step` on, only this ends
steps, and all models share them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from opdump.adapters.tensorflow.capture import Capture, Model
from opdump.adapters.tensorflow.functions.updates import StepPart
from opdump.adapters.tensorflow.model_names import EAGER


class ProgramSteps:
    """The steps of one capture. `changed` is called when the eager program enters another step."""

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
        self._differentiated = False  # a gradient was requested
        self._asked: set[int] = set()  # variables for which gradients were requested since the last end
        self._by_hand = False  # one of these was assigned to since
        self._provisional = False  # the previous step has ended, and no forward has begun since
        self._reopened = False  # it continues
        self._applying = 0  # running optimizers

    @property
    def step(self) -> int:
        """The step of the eager program, and thereby the program's iteration."""
        return self._eager

    def wants(self, step: int) -> bool:
        """Whether the operators of a step are observed: it is dumped, and the dump continues."""
        return self._capture.wants(step) and not self._capture.is_over

    def of(self, model: Model, *, within_eager: bool) -> int:
        """The step of a call of a function."""
        if self._manual or within_eager:
            return self._eager
        return self._first + self._calls[model.number]

    def order(self, step: int) -> Iterator[int]:
        """Numbers the operators of a step, for all models."""
        if step not in self._orders:
            self._orders[step] = itertools.count()
        return self._orders[step]

    def executions(self, model: Model, step: int) -> Counter[str]:
        """The number of executions of each operator of a model in a step, by name."""
        known = self._executions.get(model.number)
        if known is None or known[0] != step:
            known = self._executions[model.number] = (step, Counter())
        return known[1]

    def call_begins(self, part: StepPart) -> None:
        """A function is about to be called. Raises DumpComplete like `forward_begins`."""
        if part.differentiates:
            self.forward_begins()
        elif part.updates:
            self.optimizer_begins()

    def called(self, model: Model, step: int, part: StepPart, inputs: Sequence[Any], *, within_eager: bool) -> None:
        """A call of a function has ended. Raises DumpComplete if the last selected step ended and the program is to end with it."""
        if not (self._manual or within_eager):
            with self._capture.lock:
                self._calls[model.number] += 1
            self._capture.ended(model.names, step)
            if self._capture.wants(step):
                self._capture.end_step(step)
        if part.differentiates:
            self._asks(each._id for each in inputs if hasattr(each, "_id"))
        if part.updates:
            self.updated()
        elif part.assigned:
            self.assigned(inputs[number]._id for number in part.assigned)

    def forward_begins(self) -> None:
        """The program begins a computation whose gradients it will request. Raises DumpComplete if the step that ended before was the
        last selected one, and the program is to end with it.
        """
        if self._manual:
            return
        if self._by_hand or self._reopened:
            self._end_eager()
        self._confirm()

    def gradients_begin(self, variables: Iterable[int]) -> None:
        """Gradients are computed eagerly."""
        if self._provisional and not self._manual:
            self._reopen()
        self._asks(variables)

    def assigned(self, variables: Iterable[int]) -> None:
        """Variables were assigned to. A program that requests the gradient of a variable and assigns to it trains it."""
        if not self._applying and not self._asked.isdisjoint(variables):
            self._by_hand = True

    def optimizer_begins(self) -> None:
        """An optimizer is about to be applied eagerly. Raises DumpComplete like `forward_begins`."""
        if self._provisional and not self._manual:
            if self._differentiated:
                self._reopen()
            else:  # gradients computed by hand leave no other trace: every update counts
                self._confirm()

    def applies(self, *, begins: bool) -> None:
        """An optimizer is running between the two calls: its assignments are not manual ones."""
        self._applying += 1 if begins else -1

    def updated(self) -> None:
        """An optimizer has updated variables, which provisionally ends a step of the eager program."""
        if not self._manual:
            self._end_eager()
            self._provisional = True

    def manual_step(self) -> None:
        """End the step of all models, except one that has just ended. Raises DumpComplete if it was the last selected one."""
        ended = self._provisional
        if not self._manual:
            self._manual = True
            self._provisional = False
            self._eager = max([self._eager, *(self._first + calls - 1 for calls in self._calls.values())])
        if not ended:
            self._end_eager()
        self._capture.complete(self._eager - 1)

    def abandon(self) -> str:
        """Stop in a forked process: the capture belongs to its parent."""
        return self.when_forked()

    def close(self) -> None:
        """End the unfinished step of the eager program, so that it is written."""
        if self._capture.wants(self._eager):
            self._capture.recorder.end_step(self._eager)

    def _asks(self, variables: Iterable[int]) -> None:
        self._differentiated = True
        self._asked.update(variables)

    def _confirm(self) -> None:
        self._provisional = False
        self._capture.complete(self._eager - 1)

    def _reopen(self) -> None:
        self._eager -= 1
        self._provisional, self._reopened = False, True
        self._changed()

    def _end_eager(self) -> None:
        ended = self._eager
        self._eager += 1
        self._asked.clear()
        self._by_hand = self._reopened = False
        self._capture.ended((EAGER,), ended)
        self._orders.pop(ended - 1, None)
        self._changed()
        if self._capture.wants(ended):
            self._capture.recorder.end_step(ended)
