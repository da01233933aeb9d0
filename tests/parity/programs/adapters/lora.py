"""LoRA by peft on GPT-2: frozen weights, and adapters that are merged and unmerged."""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

from tests.parity.training_run import trained


def program() -> Any:
    base = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=2, n_head=2))
    model = get_peft_model(base, LoraConfig(r=4, target_modules=["c_attn"], lora_dropout=0.1, fan_in_fan_out=True))
    tokens = torch.randint(40, (2, 8))
    learned = trained(model.train(), lambda: model(input_ids=tokens, labels=tokens).loss)
    model.eval()
    with torch.no_grad():
        apart = model(input_ids=tokens).logits
        with model.disable_adapter():
            without = model(input_ids=tokens).logits
        merged = model.merge_and_unload()(input_ids=tokens).logits
    return learned, apart, without, merged
