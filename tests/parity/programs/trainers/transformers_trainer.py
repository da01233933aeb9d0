"""The Trainer of transformers evaluates, trains with evaluations in between, and predicts."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification, Trainer, TrainingArguments
from transformers.utils import logging

from tests.parity.training_run import left_behind


def program() -> Any:
    logging.set_verbosity_error()
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
