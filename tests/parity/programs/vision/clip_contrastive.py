"""CLIP: two towers and one contrastive loss."""

from __future__ import annotations

from typing import Any

import torch
from transformers import CLIPConfig, CLIPModel

from tests.parity.training_run import trained


def program() -> Any:
    text = {
        "vocab_size": 40,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    sight = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 16,
    }
    config = CLIPConfig(
        text_config={**text, "max_position_embeddings": 12, "eos_token_id": 39, "bos_token_id": 0},
        vision_config={**sight, "patch_size": 4},
        projection_dim=8,
    )
    model = CLIPModel(config).train()
    tokens, images = torch.randint(39, (3, 6)), torch.randn(3, 3, 16, 16)
    return trained(model, lambda: model(input_ids=tokens, pixel_values=images, return_loss=True).loss)
