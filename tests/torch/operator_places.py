"""A mode that records where operators of one type run, and networks that contain such operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from opdump.adapters.torch.training import TrainingObserver


class Places(TorchDispatchMode):
    """Records the position of every operator of one type."""

    def __init__(self, observer: TrainingObserver, kind: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.observer = observer
        self.kind = kind
        self.scopes: list[str] = []
        self.phases: list[str] = []
        self.graphs: list[int] = []
        self.calls: list[int] = []
        self.marked: list[bool] = []
        self.recomputed: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ == self.kind:
            position = self.observer.current()
            self.scopes.append(position.scope)
            self.phases.append(position.phase)
            self.graphs.append(position.graph_id)
            self.calls.append(position.call_id)
            marks = self.observer.marks
            self.marked.append(marks is not None and marks.is_chosen(position.enclosing))
            self.recomputed.append(position.recomputing)
        return func(*args, **(kwargs or {}))


class Sine(nn.Module):
    """Contains an operator that nothing else in these tests uses."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sine = Sine()
        self.fc = nn.Linear(3, 3)  # after the sine, so that the backward needs the result of the sine again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc(self.sine(x))
        return out


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Block()
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x.sin()


class Saving(nn.Module):
    """Recomputes the activations of its blocks in backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


def batch() -> torch.Tensor:
    return torch.ones(2, 3)


def sines(run: Callable[[], object], **options: Any) -> Places:
    observer = TrainingObserver(**options)
    places = Places(observer, "sin")
    with observer, places:
        run()
    return places
