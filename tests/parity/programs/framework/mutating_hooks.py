"""Hooks that change values and record their calls: on modules, tensors, nodes and accumulated gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.parity.training_run import left_behind


def program() -> Any:
    log: list[Any] = []
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.Hardswish(), nn.Linear(4, 1))
    model[0].register_forward_hook(lambda _, __, out: out.clone().mul_(1.1))
    model[2].register_forward_pre_hook(lambda _, given: (given[0].clone().add_(0.1),))
    model[2].register_full_backward_pre_hook(lambda _, given: (given[0] * 2,))
    model[4].register_full_backward_hook(lambda _, given, __: (given[0] * 0.5,))
    model[0].weight.register_hook(lambda gradient: gradient.clone().clamp_(-0.1, 0.1))

    def tripled(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        log.append(parameter.grad.norm().item())
        parameter.grad.mul_(3)

    model[4].weight.register_post_accumulate_grad_hook(tripled)
    everywhere = nn.modules.module.register_module_forward_hook(lambda module, *_: log.append(type(module).__name__))
    try:
        x = torch.randn(5, 3, requires_grad=True)
        y = model(x)
        y.grad_fn.register_prehook(lambda gradients: log.append(gradients[0].sum().item()))
        torch.autograd.graph.register_multi_grad_hook(
            [model[0].weight, model[4].bias], lambda found: log.append([each is not None for each in found])
        )
        y.sum().backward()
    finally:
        everywhere.remove()
    return y, x.grad, left_behind(model), log
