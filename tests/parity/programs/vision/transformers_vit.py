"""A vision transformer of transformers is trained with a fused optimizer."""

from __future__ import annotations

from typing import Any

import torch
from transformers import ViTConfig, ViTForImageClassification

from tests.parity.training_run import trained


def program() -> Any:
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=16,
        patch_size=4,
        num_labels=3,
    )
    model = ViTForImageClassification(config).train()
    images, labels = torch.randn(2, 3, 16, 16), torch.tensor([0, 2])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    return trained(model, lambda: model(pixel_values=images, labels=labels).loss, optimizer=optimizer)
