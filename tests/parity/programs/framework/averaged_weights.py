"""Stochastic weight averaging, moving averages, recomputed batch norm statistics, cyclic schedules."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

from tests.parity.training_run import left_behind


def program() -> Any:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.SiLU(), nn.Linear(6, 2))
    averaged, moving = AveragedModel(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = SWALR(optimizer, swa_lr=0.05)
    data = [torch.randn(4, 4) for _ in range(3)]
    for batch in data:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        schedule.step()
        averaged.update_parameters(model)
        moving.update_parameters(model)
    update_bn(data, averaged)
    return [left_behind(each) for each in (model, averaged, moving)]
