"""Graph convolutions of PyG on a random graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

from tests.parity.training_run import trained


class Nodes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = GCNConv(5, 8), GATConv(8, 4, heads=2), SAGEConv(8, 3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        x = functional.dropout(self.first(x, edges).relu(), 0.2, self.training)
        answer: torch.Tensor = self.third(self.second(x, edges).relu(), edges)
        return answer


def program() -> Any:
    x, edges, labels = torch.randn(10, 5), torch.randint(10, (2, 30)), torch.randint(3, (10,))
    model = Nodes().train()
    return trained(model, lambda: functional.cross_entropy(model(x, edges), labels))
