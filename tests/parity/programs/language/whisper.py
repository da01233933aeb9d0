"""Whisper: convolutions over a spectrum, an encoder and a decoder that generates."""

from __future__ import annotations

from typing import Any

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from tests.parity.training_run import trained


def program() -> Any:
    config = WhisperConfig(
        vocab_size=60, num_mel_bins=8, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_source_positions=20, max_target_positions=16,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, suppress_tokens=None,
        begin_suppress_tokens=None,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).train()
    sound, text = torch.randn(2, 8, 40), torch.randint(3, 60, (2, 6))
    learned = trained(model, lambda: model(input_features=sound, labels=text).loss)
    with torch.no_grad():
        decoded = model.eval()(input_features=sound, decoder_input_ids=text).logits
    return learned, decoded
