"""Trainings by the trainers of other packages."""

from __future__ import annotations

import logging
import tempfile
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from tests.parity.training_run import left_behind


def accelerate_loop() -> Any:
    """accelerate prepares model, optimizer, loader and schedule; gradients are accumulated; evaluations run in between."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    plain = nn.Sequential(nn.Conv1d(2, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.Flatten(), nn.Linear(24, 3))
    data = TensorDataset(torch.randn(8, 2, 8), torch.randint(3, (8,)))
    optimizer = torch.optim.Adagrad(plain.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    model, optimizer, loader, schedule = accelerator.prepare(plain, optimizer, DataLoader(data, batch_size=2), schedule)
    losses = []
    for _ in range(2):
        for signals, labels in loader:
            with accelerator.accumulate(model):
                loss = functional.cross_entropy(model(signals), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                losses.append(loss)
        model.eval()
        with torch.no_grad():
            losses.append(accelerator.gather_for_metrics(model(data.tensors[0])))
        model.train()
    return losses, left_behind(plain)


def fabric() -> Any:
    """Lightning Fabric: a custom loop around a prepared model and optimizer."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    plain = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 1))
    model, optimizer = fabric.setup(plain, torch.optim.NAdam(plain.parameters(), lr=0.01))
    loader = fabric.setup_dataloaders(DataLoader(TensorDataset(torch.randn(8, 5)), batch_size=2))
    losses = []
    for batch, (data,) in enumerate(loader):
        with fabric.no_backward_sync(model, enabled=batch % 2 == 0):
            loss = model(data).square().mean()
            fabric.backward(loss)
        if batch % 2:
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        losses.append(loss)
    return losses, left_behind(plain)


def lightning_automatic() -> Any:
    """Lightning trains and validates: sanity check, accumulation, clipping, callbacks, a schedule, metrics."""
    import lightning
    import torchmetrics
    from lightning.pytorch.callbacks import EarlyStopping, StochasticWeightAveraging

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

    data = TensorDataset(torch.randn(16, 6), torch.randint(3, (16,)))
    model = Classifier()
    callbacks = [EarlyStopping("val_loss", patience=5), StochasticWeightAveraging(0.01, swa_epoch_start=1)]
    trainer = _quiet_trainer(max_epochs=2, accumulate_grad_batches=2, gradient_clip_val=0.5, callbacks=callbacks)
    trainer.fit(model, DataLoader(data, batch_size=4, shuffle=True), DataLoader(data, batch_size=8))
    return model.losses, left_behind(model), dict(trainer.callback_metrics)


def lightning_bfloat16() -> Any:
    """Lightning in bf16-mixed precision with gradients accumulated, then predictions."""
    import lightning

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

    model, data = Recurrent(), torch.randn(8, 5, 4)
    trainer = _quiet_trainer(max_epochs=2, precision="bf16-mixed", accumulate_grad_batches=2)
    trainer.fit(model, DataLoader(data, batch_size=2))
    return left_behind(model), trainer.predict(model, DataLoader(data, batch_size=4))


def lightning_by_hand() -> Any:
    """Lightning with manual optimisation: a generator and a discriminator in one module."""
    import lightning

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

    model = Adversaries()
    _quiet_trainer(max_epochs=1).fit(model, DataLoader(torch.randn(12, 4), batch_size=4))
    return model.losses, left_behind(model)


def torchmetrics_collection() -> Any:
    """Many torchmetrics metrics over batches: states are summed, concatenated and computed."""
    import torchmetrics

    classes = {"task": "multiclass", "num_classes": 4}
    metrics = torchmetrics.MetricCollection(
        {
            "accuracy": torchmetrics.Accuracy(**classes),
            "f1": torchmetrics.F1Score(average="macro", **classes),
            "area": torchmetrics.AUROC(**classes),
            "confusion": torchmetrics.ConfusionMatrix(**classes),
            "calibration": torchmetrics.CalibrationError(**classes),
        }
    )
    spread = torchmetrics.MeanMetric()
    others = [torchmetrics.MeanSquaredError(), torchmetrics.PearsonCorrCoef(), torchmetrics.R2Score()]
    for _ in range(3):
        scores, labels = torch.randn(10, 4).softmax(-1), torch.randint(4, (10,))
        metrics.update(scores, labels)
        spread.update(scores)
        for metric in others:
            metric(scores[:, 0], scores[:, 1] + 0.1 * torch.randn(10))
    return metrics.compute(), spread.compute(), [metric.compute() for metric in others]


def transformers_trainer() -> Any:
    """The Trainer of transformers evaluates, trains with evaluations in between, and predicts."""
    from transformers import DistilBertConfig, DistilBertForSequenceClassification, Trainer, TrainingArguments
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    config = DistilBertConfig(vocab_size=40, dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=16)
    model = DistilBertForSequenceClassification(config)
    data = [{"input_ids": torch.randint(40, (8,)), "labels": torch.tensor(number % 2)} for number in range(8)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=1, per_device_train_batch_size=2, gradient_accumulation_steps=2, eval_strategy="steps",
            eval_steps=1, logging_steps=1, use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True, bf16=True,
        )  # fmt: skip
        trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data[:4])
        trainer.pop_callback(trainer.callback_handler.callbacks[-1])
        before = trainer.evaluate()["eval_loss"]
        trained = trainer.train().training_loss
        predicted = trainer.predict(data[4:]).predictions
    return before, trained, predicted, left_behind(model)


def _quiet_trainer(**settings: Any) -> Any:
    """A Lightning Trainer that writes nothing and runs on the CPU."""
    import lightning

    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    off = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False, "logger": False}
    return lightning.Trainer(accelerator="cpu", devices=1, **{**off, **settings})
