"""Custom autograd functions: saved tensors, double backward, in-place writes, non-differentiable outputs."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import FunctionCtx, once_differentiable


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(x)
        positive = x > 0
        ctx.mark_non_differentiable(positive)
        return x**3, positive

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 3 * x**2


class ScaledInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale = scale
        ctx.mark_dirty(x)
        return x.mul_(scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * ctx.scale, None  # type: ignore[attr-defined]


class Newer(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * ctx.saved_tensors[0].cos()


def program() -> Any:
    x = torch.randn(4, 3, requires_grad=True)
    cubed, positive = Cube.apply(x)
    answer = ScaledInPlace.apply(cubed * 2, 0.5).sum() + torch.vmap(Newer.apply)(x).sum()
    (first,) = torch.autograd.grad(Cube.apply(x)[0].sum(), x, create_graph=True)
    first.square().sum().backward()
    answer.backward()
    return answer, positive, first, x.grad
