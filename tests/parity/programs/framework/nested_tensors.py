"""Nested tensors of ragged rows through a linear layer and attention, and backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


def program() -> Any:
    rows = [torch.randn(n, 8) for n in (2, 5, 3)]
    answers: list[Any] = []
    for layout in (torch.jagged, torch.strided):
        layer = nn.Linear(8, 8)
        nested = torch.nested.nested_tensor(rows, layout=layout, requires_grad=True)
        out = layer(nested)
        if layout is torch.jagged:
            heads = out.unflatten(-1, [2, 4]).transpose(1, 2)
            out = functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(-2)
        padded = torch.nested.to_padded_tensor(out, 0.0)
        padded.square().sum().backward()
        answers += [padded, layer.weight.grad]
    return answers
