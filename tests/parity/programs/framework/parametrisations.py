"""Computed weights: spectral and weight norm, orthogonal, pruned; and a lazy module."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from tests.parity.training_run import trained


def program() -> Any:
    model = nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(4, 6)),
        parametrizations.weight_norm(nn.Linear(6, 6)),
        parametrizations.orthogonal(nn.Linear(6, 6), orthogonal_map="householder"),
        nn.LazyLinear(3),
    )
    data = torch.randn(5, 4)
    model(data)
    prune.random_unstructured(model[3], "weight", amount=0.4)
    return trained(model.train(), lambda: model(data).square().mean())
