"""Hooks on modules and gradients, a tensor subclass that logs, a function mode, scripted functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from tests.parity.training_run import left_behind


class Told(torch.Tensor):
    calls: list[str] = []

    @classmethod
    def __torch_function__(cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(getattr(function, "__name__", "?"))
        return super().__torch_function__(function, types, args, kwargs or {})


class Doubling(TorchFunctionMode):
    def __torch_function__(self, function: Callable[..., Any], _: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = function(*args, **(kwargs or {}))
        return answer * 2 if function is torch.sin else answer


@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    if bool((x > 0).any()):
        x = x + 1
    return x.relu()


def program() -> Any:
    Told.calls.clear()
    model, seen = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), []
    model[0].register_forward_hook(lambda _, __, out: out * 1.5)
    model[1].register_full_backward_hook(lambda _, given, __: seen.append(given[0]))
    model[2].weight.register_hook(lambda gradient: gradient.clamp(-0.5, 0.5))
    model[2].register_forward_pre_hook(lambda _, args: (args[0] + 0.1,))
    data = torch.randn(4, 3)
    model(data).sum().backward()
    wrapped = (data.as_subclass(Told) + 1).relu().sum()
    with Doubling():
        doubled = torch.sin(data)
    return left_behind(model), seen, wrapped.as_subclass(torch.Tensor), list(Told.calls), doubled, scripted(data)
