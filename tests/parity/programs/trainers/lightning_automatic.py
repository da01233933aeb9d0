"""Lightning trains and validates: sanity check, accumulation, clipping, callbacks, a schedule, metrics."""

from __future__ import annotations

from typing import Any

import lightning
import torch
import torchmetrics
from lightning.pytorch.callbacks import EarlyStopping, StochasticWeightAveraging
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from tests.parity.lightning_quietly import quiet_trainer
from tests.parity.training_run import left_behind


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=3)
        self.losses: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.body(x)
        return answer

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        images, labels = batch
        loss = functional.cross_entropy(self(images), labels)
        self.losses.append(loss.detach())
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        images, labels = batch
        answer = self(images)
        self.accuracy(answer, labels)
        self.log("val_loss", functional.cross_entropy(answer, labels))
        self.log("accuracy", self.accuracy)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def program() -> Any:
    data = TensorDataset(torch.randn(16, 6), torch.randint(3, (16,)))
    model = Classifier()
    callbacks = [EarlyStopping("val_loss", patience=5), StochasticWeightAveraging(0.01, swa_epoch_start=1)]
    trainer = quiet_trainer(max_epochs=2, accumulate_grad_batches=2, gradient_clip_val=0.5, callbacks=callbacks)
    trainer.fit(model, DataLoader(data, batch_size=4, shuffle=True), DataLoader(data, batch_size=8))
    return model.losses, left_behind(model), dict(trainer.callback_metrics)
