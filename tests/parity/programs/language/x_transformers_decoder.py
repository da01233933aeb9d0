"""A decoder of x-transformers: rotary positions, gated feed-forward, root-mean-square norms."""

from __future__ import annotations

from typing import Any

import torch
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

from tests.parity.training_run import trained


def program() -> Any:
    layers = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, rotary_pos_emb=True, ff_glu=True, use_rmsnorm=True)
    model = AutoregressiveWrapper(TransformerWrapper(num_tokens=40, max_seq_len=16, attn_layers=layers))
    tokens = torch.randint(40, (2, 10))
    return trained(model, lambda: model(tokens)), model.generate(tokens[:, :3], 4)
