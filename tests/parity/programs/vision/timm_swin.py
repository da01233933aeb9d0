"""Shifted windows: a tiny Swin transformer of timm, and its features."""

from __future__ import annotations

from typing import Any

import torch
from timm.models.swin_transformer import SwinTransformer

from tests.parity.training_run import trained


def program() -> Any:
    model = SwinTransformer(
        img_size=32, patch_size=2, window_size=4, embed_dim=8, depths=(2, 2), num_heads=(2, 2), num_classes=3
    ).train()
    images = torch.randn(2, 3, 32, 32)
    return trained(model, lambda: model(images).square().mean(), steps=1), model.forward_features(images)
