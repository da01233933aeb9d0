"""Forward mode, reverse mode and vmap nested in one another, for products and normalisations."""

from __future__ import annotations

from typing import Any

import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, linearize, vmap
from torch.nn import functional


def program() -> Any:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x).prod() + functional.layer_norm(x, (3,)).square().sum() + torch.linalg.norm(x)

    def moved(row: torch.Tensor, way: torch.Tensor) -> Any:
        return jvp(lambda each: each.cumprod(0).sum(), (row,), (way,))

    x = torch.randn(4, 3)
    return {
        "jvp of grad": jvp(grad(loss), (x,), (x.cos(),)),
        "hessian": hessian(loss)(x),
        "vmap of jvp": vmap(moved)(x, x.sin()),
        "jacobians": (jacfwd(jacrev(loss))(x), jacrev(jacfwd(loss))(x), jacfwd(jacfwd(loss))(x)),
        "vmap of hessian": vmap(hessian(torch.prod))(x),
        "linearized": linearize(loss, x)[1](x),
    }
