"""A listener that records the positions of the parts of a training program, and networks for such programs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from opdump.adapters.torch.training import TrainingListener, TrainingObserver

Place = tuple[int, int]  # iteration, graph_id


class Journal(TrainingListener):
    """Records the position of every forward of a network and of every optimizer step."""

    def __init__(self, **options: Any) -> None:
        self.forwards: list[Place] = []
        self.updates: list[Place] = []
        self.changes: list[str] = []
        self.observer = TrainingObserver(self, **options)

    def step_begins(self, step: int) -> None:
        assert self.observer.step == step
        self.changes.append(f"begin {step}")

    def step_ends(self, step: int, reopened: bool) -> None:
        assert self.observer.step == step
        self.changes.append(f"leave {step}" if reopened else f"end {step}")

    def root_call_begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], graph_id: int) -> None:
        assert graph_id == self.observer.current().graph_id
        self.forwards.append((self.observer.step, graph_id))

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        self.updates.append((self.observer.step, self.observer.current().graph_id))


class Net(nn.Module):
    def __init__(self, inputs: int = 3, outputs: int = 2) -> None:
        super().__init__()
        self.fc = nn.Linear(inputs, outputs)
        nn.init.constant_(self.fc.weight, 0.5)  # no dead unit: every gradient has a value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.fc(x))


class Encoder(Net):
    pass


class Decoder(Net):
    pass


def sgd(*networks: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD([parameter for network in networks for parameter in network.parameters()], lr=0.1)


def batch(columns: int = 3) -> torch.Tensor:
    return torch.ones(2, columns)


def plain(journal: Journal) -> None:
    network, loss = Net(), nn.MSELoss()
    optimizer = sgd(network)
    for _ in range(3):
        optimizer.zero_grad()
        loss(network(batch()), torch.zeros(2, 2)).backward()
        optimizer.step()


class FailingOnce(torch.optim.SGD):
    failures = 1

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        if self.failures:
            self.failures -= 1
            raise FloatingPointError("as if a check of the user failed")
