"""Orthogonal adapters (OFT) and Kronecker products (LoKr) by peft on plain linear layers."""

from __future__ import annotations

from typing import Any

import torch
from peft import LoKrConfig, OFTConfig, get_peft_model
from torch import nn

from tests.parity.training_run import trained


def program() -> Any:
    answers = []
    for kind in (
        OFTConfig(oft_block_size=4, r=0, target_modules=["0", "2"]),
        LoKrConfig(r=2, target_modules=["0", "2"]),
    ):
        model = get_peft_model(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)), kind).train()
        data = torch.randn(3, 8)
        answers.append(trained(model, lambda: model(data).square().mean()))
    return answers
