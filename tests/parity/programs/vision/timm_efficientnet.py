"""A mobile network of timm: depthwise convolutions, squeeze and excitation, in-place activations."""

from __future__ import annotations

from typing import Any

import timm
import torch
from torch.nn import functional

from tests.parity.training_run import trained


def program() -> Any:
    model = timm.create_model("mobilenetv3_small_050", num_classes=4, drop_rate=0.1).train()
    images, labels = torch.randn(2, 3, 32, 32), torch.tensor([0, 3])
    learned = trained(model, lambda: functional.cross_entropy(model(images), labels), steps=1)
    with torch.inference_mode():
        return learned, model.eval()(images)
