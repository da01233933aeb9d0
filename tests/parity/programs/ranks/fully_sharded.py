"""FSDP2: parameters are shards, gathered for a block and freed afterwards."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def program() -> Any:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)) for _ in range(2)))
    for block in model:
        fully_shard(block, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    losses = []
    for _ in range(2):
        loss = model(torch.randn(3, 4)).float().square().mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
        gradients = [each.grad.to_local().clone() for each in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        losses += [loss, norm]
    return losses, gradients, [each.full_tensor() for each in model.parameters()]
