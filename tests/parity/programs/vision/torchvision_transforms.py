"""Random torchvision transforms change pictures before a torchvision network reads them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torchvision.models import shufflenet_v2_x0_5
from torchvision.transforms import v2

from tests.parity.training_run import trained


def program() -> Any:
    change = v2.Compose(
        [
            v2.RandomResizedCrop(32, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(0.2, 0.2, 0.2, 0.1),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.2] * 3),
        ]
    )
    model = shufflenet_v2_x0_5(num_classes=3).train()
    images, labels = torch.randint(256, (2, 3, 40, 40), dtype=torch.uint8), torch.tensor([0, 1])
    return trained(model, lambda: functional.cross_entropy(model(change(images)), labels), steps=1)
