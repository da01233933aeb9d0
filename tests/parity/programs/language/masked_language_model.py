"""RoBERTa with tied embeddings learns masked tokens, with gradients accumulated over three batches."""

from __future__ import annotations

from typing import Any

import torch
from transformers import RobertaConfig, RobertaForMaskedLM

from tests.parity.training_run import left_behind


def program() -> Any:
    config = RobertaConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=20,
    )
    model = RobertaForMaskedLM(config).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)
    losses = []
    for batch in range(6):
        tokens = torch.randint(3, 40, (2, 8))
        labels = tokens.masked_fill(torch.rand(tokens.shape) > 0.3, -100)
        loss = model(input_ids=tokens.masked_fill(labels >= 0, 4), labels=labels).loss / 3
        loss.backward()
        losses.append(loss)
        if batch % 3 == 2:
            optimizer.step()
            last = left_behind(model)
            optimizer.zero_grad(set_to_none=False)
    return losses, last
