"""A variational autoencoder with transposed convolutions, reparameterised samples and a KL divergence."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributions import Independent, Normal, kl_divergence
from torch.nn import functional

from tests.parity.training_run import trained


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(1, 4, 3, 2, 1), nn.InstanceNorm2d(4, affine=True), nn.ELU(), nn.Flatten(), nn.Linear(64, 6)
        )
        self.decode = nn.Sequential(nn.Linear(3, 64), nn.Unflatten(1, (4, 4, 4)), nn.ConvTranspose2d(4, 1, 4, 2, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        mean, spread = self.encode(images).chunk(2, 1)
        hidden = Independent(Normal(mean, functional.softplus(spread) + 1e-3), 1)
        prior = Independent(Normal(torch.zeros_like(mean), torch.ones_like(mean)), 1)
        drawn = self.decode(hidden.rsample())
        return functional.mse_loss(drawn, images) + 0.1 * kl_divergence(hidden, prior).mean()


def program() -> Any:
    model, images = Autoencoder().train(), torch.randn(2, 1, 8, 8)
    return trained(model, lambda: model(images))
