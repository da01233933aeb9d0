"""Wav2Vec2 with weight norm and a CTC loss over raw sound."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

from tests.parity.training_run import trained


def program() -> Any:
    config = Wav2Vec2Config(
        vocab_size=12, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, conv_dim=(8, 8),
        conv_stride=(4, 2), conv_kernel=(8, 3), num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        num_feat_extract_layers=2, mask_time_prob=0.2, mask_time_length=2, ctc_zero_infinity=True,
    )  # fmt: skip
    model = Wav2Vec2ForCTC(config).train()
    sound, text = torch.randn(2, 400), torch.randint(1, 12, (2, 5))
    return trained(model, lambda: model(input_values=sound, labels=text).loss)
