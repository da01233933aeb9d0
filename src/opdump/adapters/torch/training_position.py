"""Where one thread of a training program is."""

from __future__ import annotations

from types import FrameType
from typing import Literal

from .training_scopes import OUTSIDE, RootScopes


class Position:
    """Where one thread of the program is. Plain attributes, to be read for every operator.

    scope          of the innermost running module or optimizer; "Default" outside
    phase          "optimizer" inside `optimizer.step`, but for what its closure runs; "forward" everywhere else
    graph_id       of the running network; outside, of the one that was called last
    call_id        grows with every call of a network, every outermost `optimizer.step` and every recomputation; outside, the
                   one of the network that was called last
    marked         a running module was marked, and none inside it was unmarked
    recomputing    a module runs again within backward (activation checkpointing)
    suspended      modules, optimizers and backward pass unseen (`TrainingObserver.suspended`)
    root           the running network, None outside
    """

    __slots__ = (
        "call_id",
        "graph_id",
        "marked",
        "optimizers",
        "phase",
        "recomputing",
        "refreshed",
        "root",
        "scope",
        "suspended",
        "tops",
    )

    def __init__(self, graph_id: int, call_id: int) -> None:
        self.scope = OUTSIDE
        self.phase: Literal["forward", "optimizer"] = "forward"
        self.graph_id = graph_id
        self.call_id = call_id
        self.marked = False
        self.recomputing = False
        self.suspended = 0
        self.root: RootScopes | None = None
        self.tops: RootScopes | None = None  # a running module that is no network and was called outside every network
        self.refreshed = False
        self.optimizers: list[RunningOptimizer] = []


class RunningOptimizer:
    """An `optimizer.step` that has not returned, and what to go back to when it does."""

    __slots__ = ("call_id", "counts", "frame", "phase", "scope")

    def __init__(self, frame: FrameType, position: Position, counts: bool) -> None:
        self.frame = frame
        self.counts = counts
        self.scope, self.phase, self.call_id = position.scope, position.phase, position.call_id

    def restore(self, position: Position) -> None:
        position.scope, position.phase, position.call_id = self.scope, self.phase, self.call_id
