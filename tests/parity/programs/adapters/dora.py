"""DoRA and rank-stabilised LoRA by peft: two adapters on one Llama."""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from tests.parity.training_run import trained


def program() -> Any:
    base = LlamaForCausalLM(
        LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    )
    kind = {"r": 2, "target_modules": ["q_proj", "v_proj"]}
    model = get_peft_model(base, LoraConfig(use_dora=True, **kind))
    model.add_adapter("other", LoraConfig(use_rslora=True, **kind))
    tokens = torch.randint(40, (2, 8))
    answers = []
    for name in ("default", "other"):
        model.set_adapter(name)
        answers.append(trained(model.train(), lambda: model(input_ids=tokens, labels=tokens).loss))
    return answers
