"""BERT classifies sentences with masks, dropout and a learning-rate schedule."""

from __future__ import annotations

from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

from tests.parity.training_run import left_behind


def program() -> Any:
    config = BertConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, num_labels=3
    )
    model = BertForSequenceClassification(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimizer, 1, 3)
    losses = []
    for _ in range(3):
        tokens = torch.randint(60, (3, 10))
        mask = torch.ones_like(tokens)
        mask[0, 6:] = 0
        loss = model(input_ids=tokens, attention_mask=mask, labels=torch.tensor([0, 1, 2])).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss)
        gradients = left_behind(model)
        optimizer.zero_grad()
    return losses, gradients
