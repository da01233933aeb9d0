"""Llama decodes token by token in an explicit loop, with a static and with a dynamic cache."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache


def program() -> Any:
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config).eval()
    logits = []
    for cache in (DynamicCache(config=config), StaticCache(config=config, max_cache_len=12)):
        tokens = torch.arange(4).reshape(1, 4)
        with torch.inference_mode():
            for _ in range(4):
                answer = model(input_ids=tokens, past_key_values=cache, use_cache=True).logits
                tokens = answer[:, -1:].argmax(-1)
                logits.append(answer)
    return logits
