"""The protocol of listeners to the events of a training program."""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer


class TrainingListener(Protocol):
    """Gets the events of a training program, in its own thread, as they happen. An exception reaches the program."""

    def step_begins(self, step: int) -> None:
        """Operators belong to `step` from now on: at `attach`, and after every `step_ends`."""

    def step_ends(self, step: int, reopened: bool) -> None:
        """The counter leaves `step`. With `reopened` it goes back, to an iteration that ended before."""

    def graph_appears(self, graph_id: int, name: str, training: bool) -> None:
        """A network runs for the first time in this mode; `name` as in `TrainingObserver.graphs`."""

    def root_call_begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], graph_id: int) -> None:
        """A network is called by the program; the position is inside it already."""

    def root_call_ends(self, module: nn.Module) -> None:
        """The same call returned (not: failed)."""

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        """An outermost `optimizer.step` returned: parameters have their new values, the step is not over yet."""


class SilentListener:
    """Does nothing; the base of listeners that want some of the events."""

    def step_begins(self, step: int) -> None: ...

    def step_ends(self, step: int, reopened: bool) -> None: ...

    def graph_appears(self, graph_id: int, name: str, training: bool) -> None: ...

    def root_call_begins(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], graph_id: int
    ) -> None: ...

    def root_call_ends(self, module: nn.Module) -> None: ...

    def optimizer_ends(self, optimizer: Optimizer) -> None: ...
