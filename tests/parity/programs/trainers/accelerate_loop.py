"""accelerate prepares model, optimizer, loader and schedule; gradients are accumulated; evaluations run in between."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from tests.parity.training_run import left_behind


def program() -> Any:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    plain = nn.Sequential(nn.Conv1d(2, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.Flatten(), nn.Linear(24, 3))
    data = TensorDataset(torch.randn(8, 2, 8), torch.randint(3, (8,)))
    optimizer = torch.optim.Adagrad(plain.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    model, optimizer, loader, schedule = accelerator.prepare(plain, optimizer, DataLoader(data, batch_size=2), schedule)
    losses = []
    for _ in range(2):
        for signals, labels in loader:
            with accelerator.accumulate(model):
                loss = functional.cross_entropy(model(signals), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                losses.append(loss)
        model.eval()
        with torch.no_grad():
            losses.append(accelerator.gather_for_metrics(model(data.tensors[0])))
        model.train()
    return losses, left_behind(plain)
