"""Llama with grouped queries under autocast to bfloat16, with gradient checkpointing."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.parity.training_run import trained


def program() -> Any:
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config).train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    tokens = torch.randint(50, (2, 9))

    def loss() -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            answer: torch.Tensor = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        return answer

    return trained(model, loss, clip=1.0)
