"""Object detection: YOLOS from transformers, because DETR with a timm backbone is large."""

from __future__ import annotations

from typing import Any

import torch
from transformers import YolosConfig, YolosModel

from tests.parity.training_run import trained


def program() -> Any:
    config = YolosConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=[16, 16], patch_size=4,
        num_detection_tokens=5,
    )  # fmt: skip
    model = YolosModel(config).train()
    images = torch.randn(2, 3, 24, 24)  # larger than image_size, so positions are interpolated
    return trained(model, lambda: model(pixel_values=images).last_hidden_state.square().mean())
