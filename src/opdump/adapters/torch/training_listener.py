"""What is told of the events of a training program."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer


class TrainingListener:
    """Gets the events of a training program, in its own thread, as they happen; each does nothing here. An exception reaches the program."""

    def step_begins(self, step: int) -> None:
        """Operators belong to `step` from now on: at `attach`, and after every `step_ends`."""

    def step_ends(self, step: int, reopened: bool) -> None:
        """The counter leaves `step`. With `reopened` it goes back, to an iteration that ended before."""

    def graph_appears(self, graph_id: int, name: str, training: bool) -> None:
        """A network runs for the first time in this mode; `name` as in `TrainingObserver.graphs`."""

    def root_call_begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], graph_id: int) -> None:
        """A network is called by the program; the position is inside it already."""

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        """An outermost `optimizer.step` returned: parameters have their new values, the step is not over yet."""
