"""torchao quantises the weights of a network to 8 bits: a tensor subclass with its own operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_


def program() -> Any:
    data, answers = torch.randn(4, 32), []
    for config in (Int8WeightOnlyConfig(), Int8DynamicActivationInt8WeightConfig()):
        model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16)).eval()
        quantize_(model, config)
        with torch.no_grad():
            answers.append(model(data))
    return answers
