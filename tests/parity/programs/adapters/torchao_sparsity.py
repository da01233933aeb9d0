"""The Wanda sparsifier of torchao: half of a layer's weights are masked, then the network is trained."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torchao.sparsity import WandaSparsifier

from tests.parity.training_run import trained


def program() -> Any:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    sparsifier = WandaSparsifier(sparsity_level=0.5)
    sparsifier.prepare(model, config=[{"tensor_fqn": "0.weight"}])
    data = torch.randn(5, 16)
    with torch.no_grad():
        model(data)
    sparsifier.step()
    sparsifier.squash_mask()
    return trained(model, lambda: model(data).square().mean())
