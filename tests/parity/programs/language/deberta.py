"""DeBERTa: disentangled attention with scripted functions."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DebertaV2Config, DebertaV2ForTokenClassification

from tests.parity.training_run import trained


def program() -> Any:
    config = DebertaV2Config(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, relative_attention=True,
        pos_att_type=["p2c", "c2p"], position_buckets=4, max_position_embeddings=16, num_labels=4, norm_rel_ebd="layer_norm",
        share_att_key=True,
    )  # fmt: skip
    model = DebertaV2ForTokenClassification(config).train()
    tokens, labels = torch.randint(40, (2, 8)), torch.randint(4, (2, 8))
    return trained(model, lambda: model(input_ids=tokens, labels=labels).loss)
