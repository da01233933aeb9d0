"""torch.compile: a compiled network is trained; its graph is one operator."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.parity.training_run import trained


def program() -> Any:
    torch.compiler.reset()
    plain = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    model = torch.compile(plain, backend="aot_eager")
    data = torch.randn(3, 4)
    return trained(plain, lambda: model(data).square().mean())
