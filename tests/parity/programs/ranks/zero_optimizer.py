"""DDP with a compression hook and an optimizer whose state is sharded over the ranks, then synchronised batch norm."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from tests.parity.training_run import left_behind


def program() -> Any:
    plain = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    model = DistributedDataParallel(plain, gradient_as_bucket_view=True, static_graph=True)
    model.register_comm_hook(None, fp16_compress_hook)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    torch.manual_seed(dist.get_rank())
    losses = []
    for _ in range(2):
        loss = model(torch.randn(3, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return losses, left_behind(plain)
