"""A mixer written with einops: rearranged, reduced and repeated tensors, and einops layers."""

from __future__ import annotations

from typing import Any

import torch
from einops import einsum, rearrange, reduce, repeat
from einops.layers.torch import EinMix, Rearrange, Reduce
from torch import nn

from tests.parity.training_run import trained


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cut = Rearrange("b c (h p) (w q) -> b (h w) (c p q)", p=4, q=4)
        self.mix = EinMix("b n d -> b n e", weight_shape="d e", bias_shape="e", d=48, e=8)
        self.pool = Reduce("b n d -> b d", "max")
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = einsum(self.mix(self.cut(images)), self.weight, "b n d, d e -> b n e")
        heads = rearrange(x, "b n (h d) -> b h n d", h=2)
        x = (
            x
            + rearrange(heads.softmax(-1), "b h n d -> b n (h d)")
            + repeat(reduce(x, "b n d -> b d", "mean"), "b d -> b n d", n=4)
        )
        answer: torch.Tensor = self.pool(x)
        return answer


def program() -> Any:
    model, images = Mixer().train(), torch.randn(2, 3, 8, 8)
    return trained(model, lambda: model(images).square().mean())
