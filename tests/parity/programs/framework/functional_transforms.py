"""torch.func: per-sample gradients, Jacobians, Hessians, forward-mode products, ensembles by vmap."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap


def program() -> Any:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    weights, data, labels = dict(model.named_parameters()), torch.randn(5, 3), torch.randn(5, 1)

    def loss(weights: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (functional_call(model, weights, (x,)) - y).square().mean()

    def scalar(x: torch.Tensor) -> torch.Tensor:
        return functional_call(model, weights, (x,)).sum()

    each = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")(weights, data, labels)
    parts, buffers = stack_module_state([nn.Linear(3, 2) for _ in range(3)])
    skeleton = nn.Linear(3, 2).to("meta")

    def one(parts: Any, buffers: Any, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = functional_call(skeleton, (parts, buffers), (x,))
        return answer

    return {
        "each": each,
        "jacobians": (jacrev(scalar)(data), jacfwd(scalar)(data)),
        "hessian": hessian(scalar)(data[0]),
        "jvp": jvp(scalar, (data,), (torch.ones_like(data),)),
        "vjp": vjp(scalar, data)[1](torch.tensor(2.0)),
        "ensemble": vmap(one, in_dims=(0, 0, None))(parts, buffers, data),
    }
