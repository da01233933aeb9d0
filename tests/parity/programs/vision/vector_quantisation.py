"""An autoencoder with residual vector quantisation: codes are learned by moving averages and random choice."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from vector_quantize_pytorch import ResidualVQ

from tests.parity.training_run import trained


class Quantised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Conv1d(2, 8, 3, padding=1), nn.Conv1d(8, 2, 3, padding=1)
        self.codes = ResidualVQ(dim=8, codebook_size=6, num_quantizers=2, kmeans_init=True, kmeans_iters=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        coded, _, penalty = self.codes(self.encode(x).transpose(1, 2))
        answer: torch.Tensor = (self.decode(coded.transpose(1, 2)) - x).square().mean() + penalty.sum()
        return answer


def program() -> Any:
    model, sound = Quantised().train(), torch.randn(3, 2, 10)
    return trained(model, lambda: model(sound), steps=3)
