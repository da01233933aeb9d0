"""Counts iterations, and tracks the optimizer steps that end them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch.optim import Optimizer

from opdump.adapters.torch.isolation import never_seen
from opdump.adapters.torch.private_names import graph_task
from opdump.adapters.torch.scopes import OUTSIDE, Position, Running, RunningOptimizer
from opdump.interpreter.critical_sections import not_interrupted

# docs/steps.md has examples of iterations; tests/torch/test_training_steps.py has the exact numbers.
#
# An iteration ends when the last optimizer step before the next forward that needs gradients returns. At that time it is not
# known to be the last, so every return ends the iteration, and an optimizer that starts before such a forward reopens it.


class StepCounter:
    """Counts iterations from the events of a training program. Calls may come from any thread.

    `step` is the current iteration. `provisional` is true between an automatic end and its confirmation, the next forward
    that needs gradients; until then the previous iteration may be reopened. At every change, `ends` is called with the
    iteration that the counter leaves and whether it returns to an earlier one, then `begins` with the new iteration.
    """

    def __init__(
        self, begins: Callable[[int], None], ends: Callable[[int, bool], None], *, first: int, automatic: bool
    ) -> None:
        self.step = first
        self.provisional = False
        self.training_seen = False
        self.automatic = automatic
        self._begins = begins
        self._ends = ends
        self._lock = threading.RLock()
        self._gradients = False  # a forward that needs gradients, or a backward, since the last end
        self._reopened = False  # reopened, and not ended since
        self._inference_ended = False  # the last end was that of an inference, and no root module ran since
        self._undecided = False  # a forward that may be inference or training; the next event decides
        self._network_trains = False  # a forward needed gradients
        self._differentiated = False  # a forward needed gradients, or a backward ran
        self._after_backward = False  # an optimizer stepped within the running backward
        self._unapplied = False  # a backward since the last end

    @not_interrupted
    def root_begins(self, *, needs_gradients: bool, training: bool, updated: bool = False, again: bool = False) -> None:
        """A root module starts outside backward. `training` is its mode. `again`: it belongs to the network called last.

        `updated`: parameters changed since the last check, here or after an optimizer. After a backward without an
        optimizer, the update was made by hand or by a compiled optimizer, and ended the iteration.

        Before any backward or optimizer, a forward in evaluation mode counts as inference, even with gradients enabled:
        `model.eval(); model(x)` without `no_grad` is common. If another network continues in training mode, it may have
        been the first half of a forward; if the same network is called again, it was not.
        """
        with self._lock:
            first, self._inference_ended = self._inference_ended, False
            trains = needs_gradients and (training or self.training_seen)
            if first and trains and not again and self.automatic:
                # The previous forward (a teacher, or a network that makes data) began the first iteration of training.
                self._move(self.step - 1, reopened=True)
            by_hand = updated and trains and self._unapplied
            if self._reopened or by_hand or (self._undecided and (not trains or again)):
                self._end()
            self._undecided = False
            if trains:
                self.provisional = False
                self._gradients = self._network_trains = self._differentiated = True
                self._training_begins()

    @not_interrupted
    def root_ends(self, *, needs_gradients: bool) -> None:
        """A root module has returned, outside backward and optimizers."""
        with self._lock:
            if self.training_seen or not self.automatic:
                return
            if needs_gradients:
                self._undecided = True
            else:
                self._end()
                self._inference_ended = True

    @not_interrupted
    def backward_begins(self) -> None:
        """`backward` or `autograd.grad` starts."""
        with self._lock:
            self._undecided = False
            self._training_begins()
            if not self._network_trains:
                # In a program without modules, only a backward separates iterations.
                self.provisional = False
            elif self.provisional:
                self._reopen()
            self._gradients = self._differentiated = self._unapplied = True

    @not_interrupted
    def backward_ends(self) -> None:
        """The outermost backward has returned or failed."""
        with self._lock:
            if self._after_backward:
                self._after_backward = False
                self._end()
                self.provisional = self.automatic

    @not_interrupted
    def optimizer_begins(self, *, closure: bool, has_gradients: Callable[[], bool]) -> bool:
        """An outermost `optimizer.step` starts. Returns whether its return may end an iteration, for `optimizer_ends`.

        A closure runs the next forward within the step, so it starts a new iteration. An optimizer without gradients to
        apply, as programs call it once before training to satisfy a learning-rate scheduler, ends none.
        """
        with self._lock:
            if closure:
                return True
            if not (self._gradients or self.provisional or has_gradients()):
                return False
            self._undecided = False
            self._training_begins()
            # Without a forward or backward that was seen (gradients made by hand), every optimizer step counts.
            if self.provisional and self._differentiated:
                self._reopen()
            self.provisional = False
            return True

    @not_interrupted
    def optimizer_ends(self, counts: bool, *, in_backward: bool) -> None:
        """An outermost `optimizer.step` has returned. Within a backward, the iteration ends when the backward returns."""
        with self._lock:
            if not counts or self.provisional:  # provisional: its closure computed no gradients
                return
            self._training_begins()
            if in_backward:
                self._after_backward = True
            else:
                self._end()
                self.provisional = self.automatic

    @not_interrupted
    def update_begins(self) -> bool:
        """`GradScaler.update` starts. The result is for `update_ends`."""
        with self._lock:
            if self.provisional:
                self._reopen()
            return self._reopened or self._gradients

    @not_interrupted
    def update_ends(self, counts: bool) -> None:
        """`GradScaler.update` has returned: it ends the iteration, even if the scaler skipped the optimizer."""
        with self._lock:
            if counts:
                self._end()
                self.provisional = self.automatic

    @not_interrupted
    def end_by_hand(self) -> None:
        """The program ends the iteration explicitly; from now on nothing else ends one.

        If an iteration has just ended automatically and nothing needed gradients since, this confirms that end.
        """
        with self._lock:
            ended = self.automatic and (self.provisional or self._inference_ended)
            self.automatic = False
            self.provisional = self._reopened = self._undecided = False
            self._gradients = self._unapplied = self._after_backward = False
            if not ended:
                self._move(self.step + 1, reopened=False)

    def _training_begins(self) -> None:
        """The program trains: from now on iterations end by the rules of training; the count continues."""
        self.training_seen = True
        self._undecided = False

    def _reopen(self) -> None:
        self.provisional = False
        if self.automatic:
            self._reopened = True
            self._move(self.step - 1, reopened=True)

    def _end(self) -> None:
        self._gradients = self._unapplied = self._reopened = self.provisional = False
        if self.automatic:
            self._move(self.step + 1, reopened=False)

    def _move(self, step: int, *, reopened: bool) -> None:
        self._ends(self.step, reopened)
        self.step = step
        self._begins(step)


# Tracks running optimizer steps, nested ones and those that failed included.


class Optimizers:
    """Moves positions into and out of optimizers, and notifies the counter of outermost ones.

    When an outermost one returns, `ended` is called before the counter.
    """

    def __init__(
        self,
        counter: StepCounter,
        current: Callable[[], Position],
        unseen: Callable[[Position], bool],
        next_call: Callable[[], int],
        ended: Callable[[Optimizer], None],
        class_names: bool,
    ) -> None:
        self._counter = counter
        self._current = current
        self._unseen = unseen
        self._next_call = next_call
        self._ended = ended
        self._class_names = class_names

    def begin(self, optimizer: Optimizer, closure: object) -> Callable[..., Any] | None:
        """Enter an optimizer; return a replacement for its closure, which runs as forward and backward, not as optimizer."""
        position = self._current()
        if self._unseen(position):
            return None
        self.abandon_failed(position)
        outermost, counts = not position.optimizers, False
        if outermost:
            counts = self._counter.optimizer_begins(
                closure=closure is not None, has_gradients=lambda: _has_gradients(optimizer)
            )
        # Two frames up: the one that runs the hook and then `step`.
        running = RunningOptimizer(sys._getframe(2), position, counts=counts)
        position.optimizers.append(running)
        if outermost:
            position.call_id = self._next_call()
        name = f"optimizer-{type(optimizer).__name__}" if self._class_names else "optimizer"
        position.scope, position.phase = f"{OUTSIDE}/{name}", "optimizer"
        position.running = Running(id(running.frame), position.running)
        return self._as_forward(closure, running) if callable(closure) else None

    def end(self, optimizer: Optimizer) -> None:
        """Leave an optimizer. Like `begin`, it must be called two frames below the one that runs `step`."""
        position = self._current()
        if self._unseen(position):
            return
        frame = sys._getframe(2)
        if all(running.frame is not frame for running in position.optimizers):
            return  # the step began before `attach`
        while True:
            running = position.optimizers.pop()
            running.restore(position)
            if running.frame is frame:
                break
        if not position.optimizers:
            self._ended(optimizer)
            self._counter.optimizer_ends(running.counts, in_backward=graph_task() != -1)

    def abandon_failed(self, position: Position) -> None:
        """Leave optimizers that failed: PyTorch calls the hook after `step` only if `step` returned.

        Call this whenever the program does something else. An optimizer whose frame is on the stack is still running.
        """
        if not position.optimizers:
            return
        running: set[int] = set()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            running.add(id(frame))
            frame = frame.f_back
        while position.optimizers and id(position.optimizers[-1].frame) not in running:
            position.optimizers.pop().restore(position)

    def _as_forward(self, closure: Callable[..., Any], outer: RunningOptimizer) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            position = self._current()
            inside = (position.scope, position.phase, position.call_id)
            position.scope, position.phase, position.call_id = outer.scope, outer.phase, position.network_call
            try:
                return closure(*args, **kwargs)
            finally:
                position.scope, position.phase, position.call_id = inside

        return forward


@never_seen
def _has_gradients(optimizer: Optimizer) -> bool:
    return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])
