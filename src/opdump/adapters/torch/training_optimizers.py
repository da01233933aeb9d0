"""Tracks running optimizer steps, nested ones and those that failed included."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch.optim import Optimizer

from opdump.adapters.torch.private_names import graph_task
from opdump.adapters.torch.training_position import Position, Running, RunningOptimizer
from opdump.adapters.torch.training_scopes import OUTSIDE
from opdump.adapters.torch.training_steps import StepCounter
from opdump.adapters.torch.unseen import never_seen


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
