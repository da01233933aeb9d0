"""A pipeline of two stages that send activations forward and gradients back, microbatch by microbatch."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


def program() -> Any:
    rank = dist.get_rank()
    parts = [nn.Sequential(nn.Linear(4, 6), nn.ReLU()), nn.Linear(6, 2)]
    stage = PipelineStage(parts[rank], rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
    data, target, losses = torch.randn(4, 4), torch.randn(4, 2), []
    if rank == 0:
        schedule.step(data)
    else:
        schedule.step(target=target, losses=losses)
    return losses, [each.grad for each in parts[rank].parameters()]
