"""Sparse tensors in COO and CSR format, sparse gradients of an embedding, SparseAdam."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.parity.training_run import left_behind


def program() -> Any:
    words = nn.EmbeddingBag(12, 4, sparse=True, mode="sum")
    optimizer = torch.optim.SparseAdam(words.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        words(torch.randint(12, (3, 4))).square().sum().backward()
        gradient = words.weight.grad
        optimizer.step()
    places = torch.tensor([[0, 1, 1], [2, 0, 2]])
    coordinates = torch.sparse_coo_tensor(places, torch.randn(3), (2, 3)).coalesce().requires_grad_()
    dense = torch.randn(3, 4, requires_grad=True)
    product = torch.sparse.mm(coordinates, dense)
    product.square().sum().backward()
    rows = torch.randn(3, 4).relu().to_sparse_csr()
    return (
        left_behind(words),
        gradient,
        product,
        coordinates.grad,
        dense.grad,
        rows @ torch.randn(4, 2),
        coordinates + coordinates,
    )
