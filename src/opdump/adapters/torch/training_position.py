"""The position of one thread of a training program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Literal

from opdump.adapters.torch.dump_selection import Enclosing
from opdump.adapters.torch.training_scopes import OUTSIDE, RootScopes
from opdump.records import Frame

Phase = Literal["forward", "optimizer"]


class Running:
    """A running call of a module or an optimizer. `frame` is the identity of its frame, `outer` the call around it."""

    __slots__ = ("callers", "frame", "level", "outer")

    def __init__(self, frame: int, outer: Running | None) -> None:
        self.frame = frame
        self.outer = outer
        self.level: int = 1 if outer is None else outer.level + 1
        """The number of running calls of modules and optimizers, including this one."""
        self.callers: Sequence[Frame] | None = None
        """The lines of the program that lead to it; None until they are read."""


@dataclass(slots=True, eq=False)
class Position:
    """Plain attributes, because they are read for every operator.

    scope          of the innermost running module or optimizer; "Default" outside
    phase          "optimizer" inside `optimizer.step`, except in its closure; "forward" everywhere else
    graph_id       of the running network; outside, of the one that was called last
    call_id        increases with every call of a network, every outermost `optimizer.step` and every recomputation;
                   outside, that of the network that was called last
    enclosing      the innermost running call of a module if marks are tracked; else None
    recomputing    whether a module runs again within backward (activation checkpointing)
    running        the innermost running call of a module or an optimizer; None outside

    The others are for the observer: `root` is the running network, `top` a running module that is not a network and was
    called outside every network, `network_call` the value that `call_id` returns to, `suspended` the number of open
    `suspended()` blocks, `updating` whether `GradScaler.update` runs.
    """

    graph_id: int
    call_id: int
    network_call: int
    scope: str = OUTSIDE
    phase: Phase = "forward"
    enclosing: Enclosing | None = None
    recomputing: bool = False
    running: Running | None = None
    suspended: int = 0
    updating: bool = False
    root: RootScopes | None = None
    top: RootScopes | None = None
    refreshed: bool = False  # whether the modules of the root were walked during its current call
    optimizers: list[RunningOptimizer] = field(default_factory=list)


class RunningOptimizer:
    """An `optimizer.step` that has not returned, run by `frame`, and the position to restore when it does."""

    __slots__ = ("around", "counts", "frame", "phase", "scope")

    def __init__(self, frame: FrameType, position: Position, *, counts: bool) -> None:
        self.frame = frame
        self.counts = counts
        self.scope, self.phase, self.around = position.scope, position.phase, position.running

    def restore(self, position: Position) -> None:
        position.scope, position.phase, position.running = self.scope, self.phase, self.around
        if not position.optimizers:
            position.call_id = position.network_call
