"""Calls that PyTorch refuses are refused with the same message, and the program continues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional


def program() -> Any:
    x = torch.randn(3, 4)
    calls: list[Callable[[], Any]] = [
        lambda: x @ x,
        lambda: x.view(5),
        lambda: torch.linalg.inv(torch.zeros(2, 2)),
        lambda: torch.linalg.cholesky(-torch.eye(2)),
        lambda: functional.embedding(torch.tensor([9]), torch.ones(2, 2)),
        lambda: x.clone().requires_grad_().add_(1).sum().backward(),
        lambda: torch.cat([x, torch.ones(2, 2)]),
        lambda: functional.cross_entropy(x, torch.tensor([9, 0, 0])),
        lambda: torch.ones(2, requires_grad=True).backward(),
        lambda: torch._foreach_add([x], [x, x]),
        lambda: torch.multinomial(-torch.ones(3), 1),
        lambda: torch.linalg.eigvalsh(x),
        lambda: functional.layer_norm(x, (3,)),
    ]
    return [_told(call) for call in calls], x, torch.rand(2)


def _told(call: Callable[[], Any]) -> str:
    try:
        call()
    except (RuntimeError, IndexError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"
