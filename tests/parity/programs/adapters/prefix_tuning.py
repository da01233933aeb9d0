"""Prefix tuning by peft: learned prefixes for the keys and values of every layer."""

from __future__ import annotations

from typing import Any

import torch
from peft import PrefixTuningConfig, TaskType, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

from tests.parity.training_run import trained


def program() -> Any:
    base = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=24, n_embd=16, n_layer=2, n_head=2))
    config = PrefixTuningConfig(
        task_type=TaskType.CAUSAL_LM, num_virtual_tokens=3, prefix_projection=True, encoder_hidden_size=8
    )
    model = get_peft_model(base, config)
    tokens = torch.randint(40, (2, 6))
    return trained(model.train(), lambda: model(input_ids=tokens, labels=tokens).loss)
