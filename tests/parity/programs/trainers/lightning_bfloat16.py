"""Lightning in bf16-mixed precision with gradients accumulated, then predictions."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.parity.lightning_quietly import quiet_trainer
from tests.parity.training_run import left_behind


class Recurrent(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.GRU(4, 8, 2, dropout=0.1, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.head(self.cells(x)[0].mean(1))
        return answer

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return self(batch).float().square().mean()  # type: ignore[no-any-return]

    def configure_optimizers(self) -> Any:
        return torch.optim.RMSprop(self.parameters(), lr=0.01)


def program() -> Any:
    model, data = Recurrent(), torch.randn(8, 5, 4)
    trainer = quiet_trainer(max_epochs=2, precision="bf16-mixed", accumulate_grad_batches=2)
    trainer.fit(model, DataLoader(data, batch_size=2))
    return left_behind(model), trainer.predict(model, DataLoader(data, batch_size=4))
