"""Object detection: DETR of transformers with a backbone of timm's kind is large; Conditional queries by YOLOS are not."""

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
    images = torch.randn(2, 3, 24, 24)  # positions are interpolated
    return trained(model, lambda: model(pixel_values=images).last_hidden_state.square().mean())
