"""T5 learns with teacher forcing, then generates with encoder and decoder caches."""

from __future__ import annotations

from typing import Any

import torch
from transformers import T5Config, T5ForConditionalGeneration

from tests.parity.training_run import trained


def program() -> Any:
    config = T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip
    model = T5ForConditionalGeneration(config).train()
    source, target = torch.randint(50, (2, 7)), torch.randint(50, (2, 5))
    learned = trained(model, lambda: model(input_ids=source, labels=target).loss)
    return learned, model.eval().generate(source, max_new_tokens=5, do_sample=False)
