"""Prompt tuning and (IA)3 by peft on a classifier."""

from __future__ import annotations

from typing import Any

import torch
from peft import IA3Config, PromptTuningConfig, TaskType, get_peft_model
from transformers import BertConfig, BertForSequenceClassification

from tests.parity.training_run import trained


def program() -> Any:
    config = BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    tokens, labels = torch.randint(40, (2, 6)), torch.tensor([0, 1])
    mask = torch.ones_like(tokens)
    kinds = (
        PromptTuningConfig(task_type=TaskType.SEQ_CLS, num_virtual_tokens=2),
        IA3Config(task_type=TaskType.SEQ_CLS, target_modules=["query", "value"], feedforward_modules=[]),
    )
    answers = []
    for kind in kinds:
        model = get_peft_model(BertForSequenceClassification(config), kind).train()
        answers.append(trained(model, lambda: model(input_ids=tokens, attention_mask=mask, labels=labels).loss))
    return answers
