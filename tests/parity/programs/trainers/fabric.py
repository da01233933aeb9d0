"""Lightning Fabric: a custom loop around a prepared model and optimizer."""

from __future__ import annotations

from typing import Any

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.parity.training_run import left_behind


def program() -> Any:
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    plain = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 1))
    model, optimizer = fabric.setup(plain, torch.optim.NAdam(plain.parameters(), lr=0.01))
    loader = fabric.setup_dataloaders(DataLoader(TensorDataset(torch.randn(8, 5)), batch_size=2))
    losses = []
    for batch, (data,) in enumerate(loader):
        with fabric.no_backward_sync(model, enabled=batch % 2 == 0):
            loss = model(data).square().mean()
            fabric.backward(loss)
        if batch % 2:
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        losses.append(loss)
    return losses, left_behind(plain)
