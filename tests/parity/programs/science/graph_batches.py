"""A PyG loader with batches of graphs, pooling, and edges with features."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINEConv, global_mean_pool

from tests.parity.training_run import left_behind


class Molecules(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = GINEConv(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8)), edge_dim=3)
        self.second = GINEConv(nn.Linear(8, 8), edge_dim=3, train_eps=True)
        self.head = nn.Linear(8, 1)

    def forward(self, data: Any) -> torch.Tensor:
        x = self.first(data.x, data.edge_index, data.edge_attr)
        x = self.second(x, data.edge_index, data.edge_attr)
        answer: torch.Tensor = self.head(global_mean_pool(x, data.batch))
        return answer


def program() -> Any:
    graphs = [
        Data(
            x=torch.randn(n, 4),
            edge_index=torch.randint(n, (2, 2 * n)),
            edge_attr=torch.randn(2 * n, 3),
            y=torch.randn(1, 1),
        )
        for n in (3, 5, 4, 6)
    ]
    model = Molecules().train()
    optimizer = torch.optim.Adamax(model.parameters(), lr=0.01)
    losses = []
    for batch in DataLoader(graphs, batch_size=2, shuffle=True):
        loss = (model(batch) - batch.y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return losses, left_behind(model)
