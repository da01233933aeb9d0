"""Qwen with sliding windows and eager attention, trained with Adafactor."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Adafactor, Qwen2Config, Qwen2ForCausalLM

from tests.parity.training_run import trained


def program() -> Any:
    config = Qwen2Config(
        vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        use_sliding_window=True, sliding_window=4, max_window_layers=1, attn_implementation="eager",
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).train()
    tokens = torch.randint(40, (2, 10))
    optimizer = Adafactor(model.parameters(), lr=1e-3, scale_parameter=False, relative_step=False)
    return trained(model, lambda: model(input_ids=tokens, labels=tokens).loss, optimizer=optimizer)
