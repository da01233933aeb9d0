"""Mixtral: a router chooses experts, so shapes depend on data."""

from __future__ import annotations

from typing import Any

import torch
from transformers import MixtralConfig, MixtralForCausalLM

from tests.parity.training_run import trained


def program() -> Any:
    config = MixtralConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        num_local_experts=4, num_experts_per_tok=2, output_router_logits=True,
    )  # fmt: skip
    model = MixtralForCausalLM(config).train()
    tokens = torch.randint(40, (2, 6))
    return trained(model, lambda: model(input_ids=tokens, labels=tokens).loss)
