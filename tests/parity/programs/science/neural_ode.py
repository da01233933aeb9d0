"""A neural differential equation by torchdiffeq, with adjoint gradients: backward runs the solver again."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torchdiffeq import odeint, odeint_adjoint

from tests.parity.training_run import trained


class Slope(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2))

    def forward(self, _: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.net(y**3)
        return answer


def program() -> Any:
    times, start, model = torch.linspace(0, 1, 4), torch.randn(3, 2), Slope()
    return [
        trained(model, lambda: solve(model, start, times, method=method)[-1].square().mean(), steps=1)
        for solve, method in ((odeint, "rk4"), (odeint_adjoint, "euler"), (odeint, "dopri5"))
    ]
