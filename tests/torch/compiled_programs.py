"""Programs that are compiled or traced, and the entry points that PyTorch leaves untyped."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.torch.recording import Operators

# Untyped or loosely typed by PyTorch.
compiled_with: Any = torch.compile
jit: Any = torch.jit
onnx: Any = torch.onnx
second_derivatives: Any = torch.autograd.functional.hessian

# "inductor" calls the C++ compiler, which takes seconds for each graph.
BACKENDS = ("eager", "aot_eager", pytest.param("inductor", marks=[pytest.mark.slow, pytest.mark.compiler]))


class Network(nn.Module):
    """Two linear layers around a batch norm, which updates its running statistics."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.wide = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.narrow = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.narrow(torch.relu(self.norm(self.wide(x))))  # type: ignore[no-any-return]


class Counter:
    """A backend that counts the graphs that it passes to another backend."""

    def __init__(self, backend: str) -> None:
        self.graphs = 0
        self._backend = backend

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        return torch._dynamo.lookup_backend(self._backend)(graph, inputs)


def train(network: Any, steps: int = 2) -> list[torch.Tensor]:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    results = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = network(torch.randn(6, 4)).square().sum()
        loss.backward()
        results += [loss.detach().clone(), *(p.grad.clone() for p in network.parameters() if p.grad is not None)]
        optimizer.step()
    return [*results, *(v.detach().clone() for v in network.state_dict().values()), torch.get_rng_state()]


def assert_same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def compiled_names(mode: Operators) -> list[str]:
    return [name for name in mode.names if name.startswith("compiled")]


def compiled_at(mode: Operators, name: str) -> int:
    assert name in mode.names
    return mode.names.index(name)


def formula(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * 2).sum()


def layers() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
