"""A residual network of timm, channels last, with an exponential moving average of its weights."""

from __future__ import annotations

from typing import Any

import timm
import torch
from timm.utils import ModelEmaV3
from torch.nn import functional

from tests.parity.training_run import left_behind


def program() -> Any:
    model = timm.create_model("resnet10t", num_classes=4).to(memory_format=torch.channels_last).train()
    average = ModelEmaV3(model, decay=0.9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    losses = []
    for _ in range(2):
        images = torch.randn(2, 3, 32, 32).to(memory_format=torch.channels_last)
        loss = functional.cross_entropy(model(images), torch.tensor([1, 3]), label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model)
        losses.append(loss)
    return losses, left_behind(model), left_behind(average.module)
