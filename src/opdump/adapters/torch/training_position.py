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
        """How many calls of modules and optimizers run, this one included."""
        self.callers: Sequence[Frame] | None = None
        """The lines of the program that lead to it, once somebody has read them."""


@dataclass(slots=True, eq=False)
class Position:
    """Plain attributes, to be read for every operator.

    scope          of the innermost running module or optimizer; "Default" outside
    phase          "optimizer" inside `optimizer.step`, but for what its closure runs; "forward" everywhere else
    graph_id       of the running network; outside, of the one that was called last
    call_id        grows with every call of a network, every outermost `optimizer.step` and every recomputation; outside, the
                   one of the network that was called last
    enclosing      the innermost running call of a module, where marks are followed; else None
    recomputing    a module runs again within backward (activation checkpointing)
    running        the innermost running call of a module or an optimizer; None outside

    The others are the observer's own: `root` is the running network, `top` a running module that is none and was called
    outside every network, `network_call` the call that `call_id` goes back to, `suspended` counts `suspended()` blocks,
    `updating` is true within `GradScaler.update`.
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
    refreshed: bool = False  # the modules of the root were walked during its present call
    optimizers: list[RunningOptimizer] = field(default_factory=list)


class RunningOptimizer:
    """An `optimizer.step` that has not returned, run by `frame`, and what to go back to when it does."""

    __slots__ = ("around", "counts", "frame", "phase", "scope")

    def __init__(self, frame: FrameType, position: Position, *, counts: bool) -> None:
        self.frame = frame
        self.counts = counts
        self.scope, self.phase, self.around = position.scope, position.phase, position.running

    def restore(self, position: Position) -> None:
        position.scope, position.phase, position.running = self.scope, self.phase, self.around
        if not position.optimizers:
            position.call_id = position.network_call
