"""Lightning with manual optimisation: a generator and a discriminator in one module."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from tests.parity.lightning_quietly import quiet_trainer
from tests.parity.training_run import left_behind


class Adversaries(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4))
        self.discriminator = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(), nn.Linear(8, 1))
        self.losses: list[torch.Tensor] = []

    def training_step(self, real: torch.Tensor, _: int) -> None:
        for_generator, for_discriminator = self.optimizers()
        made = self.generator(torch.randn(len(real), 3))
        judged = torch.cat([self.discriminator(real), self.discriminator(made.detach())])
        truth = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])
        loss = functional.binary_cross_entropy_with_logits(judged, truth)
        for_discriminator.zero_grad()
        self.manual_backward(loss)
        for_discriminator.step()
        fooled = functional.binary_cross_entropy_with_logits(self.discriminator(made), torch.ones(len(real), 1))
        for_generator.zero_grad()
        self.manual_backward(fooled)
        for_generator.step()
        self.losses += [loss.detach(), fooled.detach()]

    def configure_optimizers(self) -> Any:
        parts = (self.generator, self.discriminator)
        return [torch.optim.Adam(part.parameters(), lr=0.01, betas=(0.5, 0.9)) for part in parts]


def program() -> Any:
    model = Adversaries()
    quiet_trainer(max_epochs=1).fit(model, DataLoader(torch.randn(12, 4), batch_size=4))
    return model.losses, left_behind(model)
