"""The state after a training of the program collection: losses, gradients, parameters and buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def trained(
    model: nn.Module,
    loss_of: Callable[[], Tensor],
    *,
    steps: int = 2,
    optimizer: torch.optim.Optimizer | None = None,
    clip: float | None = None,
) -> dict[str, Any]:
    """Train for some steps with AdamW or the given optimizer, and return everything that can be compared."""
    optimizer = optimizer or torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.detach())
    return {"losses": losses, **left_behind(model)}


def left_behind(model: nn.Module) -> dict[str, Any]:
    """The gradients, parameters and buffers of a model."""
    return {
        "gradients": {name: each.grad for name, each in model.named_parameters()},
        "state": {name: each for name, each in model.state_dict().items() if isinstance(each, Tensor)},
    }
