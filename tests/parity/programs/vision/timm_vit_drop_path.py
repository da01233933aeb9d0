"""A small vision transformer of timm with stochastic depth, layer scale and mixup."""

from __future__ import annotations

from typing import Any

import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.models.vision_transformer import VisionTransformer
from timm.optim import create_optimizer_v2

from tests.parity.training_run import trained


def program() -> Any:
    model = VisionTransformer(
        img_size=16,
        patch_size=4,
        num_classes=5,
        embed_dim=16,
        depth=3,
        num_heads=2,
        drop_path_rate=0.3,
        init_values=0.1,
    ).train()
    mixup, loss = Mixup(mixup_alpha=0.4, cutmix_alpha=1.0, num_classes=5), SoftTargetCrossEntropy()
    images, labels = torch.randn(4, 3, 16, 16), torch.tensor([0, 1, 2, 3])

    def step() -> torch.Tensor:
        mixed, targets = mixup(images.clone(), labels)
        answer: torch.Tensor = loss(model(mixed), targets)
        return answer

    optimizer = create_optimizer_v2(model, opt="lamb", lr=1e-2, weight_decay=0.02)
    return trained(model, step, optimizer=optimizer)
