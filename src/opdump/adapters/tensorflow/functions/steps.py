"""Counts the steps of each model, and says when one ends.

A call of a traced function is a step of that function. What the program runs outside of such functions, and the functions whose
gradient it takes from outside, belong to the steps of the eager program. One ends where variables were updated and the next forward begins:

- at the return of an optimizer, or of a traced function that updates; where another optimizer is applied or a gradient is computed before
  the next forward, the step that ended goes on (`reopened`)
- at the next forward, where the program assigned by hand to a variable of which it had asked a gradient

A forward begins with a `GradientTape` and with a function that computes gradients itself. From the first `manual_step` on, that alone ends
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
        self._differentiated = False  # some gradient was asked for
        self._asked: set[int] = set()  # variables of which gradients were asked since the last end
        self._by_hand = False  # one of these was assigned to since
        self._provisional = False  # the step before has ended, and no forward began since
        self._reopened = False  # it goes on
        self._applying = 0  # optimizers that are at work

    @property
    def step(self) -> int:
        """The step of the eager program, and with it the iteration that the program is in."""
        return self._eager

    def wants(self, step: int) -> bool:
        """Whether the operators of a step are looked at: it is dumped, and the dump goes on."""
        return self._capture.wants(step) and not self._capture.is_over

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

    def call_begins(self, part: StepPart) -> None:
        """A function is going to be called. Raises DumpComplete as `forward_begins` does."""
        if part.differentiates:
            self.forward_begins()
        elif part.updates:
            self.optimizer_begins()

    def called(self, model: Model, step: int, part: StepPart, inputs: Sequence[Any], *, within_eager: bool) -> None:
        """A call of a function has ended. Raises DumpComplete where the last wanted step ended and the program is to end with it."""
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
        """The program begins a computation of which it will want gradients. Raises DumpComplete where the step that ended before was the
        last that is wanted, and the program is to end with it.
        """
        if self._manual:
            return
        if self._by_hand or self._reopened:
            self._end_eager()
        self._confirm()

    def gradients_begin(self, variables: Iterable[int]) -> None:
        """Gradients are computed at once."""
        if self._provisional and not self._manual:
            self._reopen()
        self._asks(variables)

    def assigned(self, variables: Iterable[int]) -> None:
        """Variables got another value. Who asks for the gradient of one and assigns to it trains it."""
        if not self._applying and not self._asked.isdisjoint(variables):
            self._by_hand = True

    def optimizer_begins(self) -> None:
        """An optimizer is going to be applied at once. Raises DumpComplete as `forward_begins` does."""
        if self._provisional and not self._manual:
            if self._differentiated:
                self._reopen()
            else:  # gradients that are made by hand leave no other trace: every update counts
                self._confirm()

    def applies(self, *, begins: bool) -> None:
        """An optimizer is at work from one call to the other: what it assigns to is no assignment by hand."""
        self._applying += 1 if begins else -1

    def updated(self) -> None:
        """An optimizer has updated variables: a step of the eager program ends, as far as is known."""
        if not self._manual:
            self._end_eager()
            self._provisional = True

    def manual_step(self) -> None:
        """Ends the step of all models, but for one that has ended just now. Raises DumpComplete where it was the last that is wanted."""
        ended = self._provisional
        if not self._manual:
            self._manual = True
            self._provisional = False
            self._eager = max([self._eager, *(self._first + calls - 1 for calls in self._calls.values())])
        if not ended:
            self._end_eager()
        self._capture.complete(self._eager - 1)

    def abandon(self) -> str:
        """Leaves a forked process: what is captured is its parent's."""
        return self.when_forked()

    def close(self) -> None:
        """Files what was begun."""
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
