"""Transformer layers of PyTorch: fast path in inference, masks, decoders, attention that returns weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.parity.training_run import trained


def program() -> Any:
    model = nn.Transformer(8, 2, 1, 1, 16, dropout=0.1, batch_first=True)
    source, target = torch.randn(2, 5, 8), torch.randn(2, 4, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    learned = trained(model, lambda: model(source, target, tgt_mask=mask, tgt_is_causal=True).square().mean())
    layer = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    hidden = torch.tensor([[False, False, False, True, True], [False] * 5])
    with torch.inference_mode():
        fast = layer(source, src_key_padding_mask=hidden)
        attended = nn.MultiheadAttention(8, 2, batch_first=True).eval()(
            source, source, source, average_attn_weights=False
        )
    return learned, fast, attended
