"""Quantisation-aware training by torchao: fake-quantised weights and activations."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torchao.quantization.qat import Int8DynActInt4WeightQATQuantizer

from tests.parity.training_run import trained


def program() -> Any:
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    model = Int8DynActInt4WeightQATQuantizer(groupsize=32).prepare(model).train()
    data = torch.randn(3, 32)
    return trained(model, lambda: model(data).square().mean())
