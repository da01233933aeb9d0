"""DTensor: shards and replicas, their products, and a network split by columns and rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.down(self.up(x).relu())
        return answer


def program() -> Any:
    mesh = init_device_mesh("cpu", (2,))
    left = distribute_tensor(torch.randn(4, 6), mesh, [Shard(0)])
    right = distribute_tensor(torch.randn(6, 4), mesh, [Replicate()])
    product = (left @ right).redistribute(placements=[Shard(1)])
    total = product.sum().full_tensor()
    model = parallelize_module(Block(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    data, losses = torch.randn(3, 4), []
    for _ in range(2):
        loss = model(data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    assert Partial().is_partial()
    return product.to_local(), total, losses, [each.full_tensor() for each in model.parameters()]
