"""Mamba, a state-space model: its slow path is a scan in Python."""

from __future__ import annotations

from typing import Any

import torch
from transformers import MambaConfig, MambaForCausalLM

from tests.parity.training_run import trained


def program() -> Any:
    config = MambaConfig(vocab_size=40, hidden_size=16, state_size=4, num_hidden_layers=2, conv_kernel=3)
    model = MambaForCausalLM(config).train()
    tokens = torch.randint(40, (2, 6))
    return trained(model, lambda: model(input_ids=tokens, labels=tokens).loss)
