"""DistributedDataParallel: gradients reduced in buckets, accumulation without synchronisation, broadcast buffers."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.parity.training_run import left_behind


def program() -> Any:
    plain = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    model = DistributedDataParallel(plain, bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        with model.no_sync():
            model(torch.randn(3, 4)).square().mean().backward()
        loss = model(torch.randn(3, 4)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss)
    return losses, left_behind(plain)
