"""A heterogeneous graph in PyG: one convolution for each edge type."""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv

from tests.parity.training_run import trained


def program() -> Any:
    data = HeteroData()
    data["reader"].x, data["book"].x = torch.randn(5, 4), torch.randn(6, 3)
    data["reader", "reads", "book"].edge_index = torch.stack([torch.randint(5, (12,)), torch.randint(6, (12,))])
    data["book", "read_by", "reader"].edge_index = data["reader", "reads", "book"].edge_index.flip(0)
    model = HeteroConv(
        {
            ("reader", "reads", "book"): SAGEConv((4, 3), 7),
            ("book", "read_by", "reader"): SAGEConv((3, 4), 7),
        }
    ).train()

    def loss() -> torch.Tensor:
        made = model(data.x_dict, data.edge_index_dict)
        answer: torch.Tensor = made["book"].square().mean() + made["reader"].abs().mean()
        return answer

    return trained(model, loss)
