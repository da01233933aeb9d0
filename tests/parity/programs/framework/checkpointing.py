"""Activation checkpointing, both kinds, with dropout; sequences in segments; saved-tensor hooks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.parity.training_run import trained


def program() -> Any:
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Dropout(0.3)) for _ in range(4)))
    data = torch.randn(3, 6, requires_grad=True)

    def loss() -> torch.Tensor:
        x = checkpoint(blocks[0], data, use_reentrant=True)
        x = checkpoint(blocks[1], x, use_reentrant=False)
        x = checkpoint_sequential(blocks[2:], 2, x, use_reentrant=False)
        with save_on_cpu(), saved_tensors_hooks(lambda saved: saved.double(), lambda kept: kept.float()):
            answer: torch.Tensor = x.exp().square().mean()
        return answer

    return trained(blocks, loss), data.grad
