"""GPT-2 generates: greedy with a cache, beams, and samples."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def program() -> Any:
    config = GPT2Config(vocab_size=50, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=49)
    model = GPT2LMHeadModel(config).eval()
    prompt = torch.randint(48, (2, 4))
    options = {"max_new_tokens": 6, "pad_token_id": 0, "attention_mask": torch.ones_like(prompt)}
    greedy = model.generate(prompt, do_sample=False, output_scores=True, return_dict_in_generate=True, **options)
    return {
        "greedy": (greedy.sequences, list(greedy.scores)),
        "beams": model.generate(prompt, num_beams=3, do_sample=False, **options),
        "sampled": model.generate(prompt, do_sample=True, top_k=5, top_p=0.9, temperature=0.7, **options),
    }
