"""A data loader with worker processes, a weighted sampler and random changes of the data."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

from tests.parity.training_run import left_behind


class Noisy(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), float(index)) + torch.rand(3)


def program() -> Any:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sampler = WeightedRandomSampler([1.0] * 8, 8)
    losses = []
    for batch in DataLoader(Noisy(), batch_size=4, sampler=sampler, num_workers=1):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return losses, left_behind(model)
