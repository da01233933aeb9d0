"""Quantisation in PyTorch: dynamic, and fake-quantised tensors with learned scales."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.ao.quantization import FakeQuantize, quantize_dynamic
from torch.ao.quantization.observer import MovingAverageMinMaxObserver

from tests.parity.training_run import trained


def program() -> Any:
    data = torch.randn(4, 8)
    model = nn.Sequential(
        nn.Linear(8, 8), FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255), nn.Linear(8, 2)
    )
    learned = trained(model, lambda: model(data).square().mean())
    small = quantize_dynamic(
        nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).eval(), {nn.Linear}, torch.qint8
    )
    whole = torch.quantize_per_tensor(data, 0.1, 3, torch.qint8)
    channels = torch.quantize_per_channel(data, torch.rand(4) + 0.1, torch.zeros(4), 0, torch.quint8)
    return learned, small(data), whole.dequantize(), whole.int_repr(), channels.dequantize()
