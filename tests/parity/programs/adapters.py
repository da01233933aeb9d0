"""Adapters and quantisation of models: peft and torchao."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.parity.training_run import trained


def dora() -> Any:
    """DoRA and rank-stabilised LoRA by peft: two adapters on one Llama."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    base = LlamaForCausalLM(
        LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    )
    kind = {"r": 2, "target_modules": ["q_proj", "v_proj"]}
    model = get_peft_model(base, LoraConfig(use_dora=True, **kind))
    model.add_adapter("other", LoraConfig(use_rslora=True, **kind))
    tokens = torch.randint(40, (2, 8))
    answers = []
    for name in ("default", "other"):
        model.set_adapter(name)
        answers.append(trained(model.train(), lambda: model(input_ids=tokens, labels=tokens).loss))
    return answers


def lora() -> Any:
    """LoRA by peft on GPT-2: frozen weights, and adapters that are merged and unmerged."""
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    base = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=2, n_head=2))
    model = get_peft_model(base, LoraConfig(r=4, target_modules=["c_attn"], lora_dropout=0.1, fan_in_fan_out=True))
    tokens = torch.randint(40, (2, 8))
    learned = trained(model.train(), lambda: model(input_ids=tokens, labels=tokens).loss)
    model.eval()
    with torch.no_grad():
        apart = model(input_ids=tokens).logits
        with model.disable_adapter():
            without = model(input_ids=tokens).logits
        merged = model.merge_and_unload()(input_ids=tokens).logits
    return learned, apart, without, merged


def orthogonal() -> Any:
    """Orthogonal adapters (OFT) and Kronecker products (LoKr) by peft on plain linear layers."""
    from peft import LoKrConfig, OFTConfig, get_peft_model

    answers = []
    for kind in (
        OFTConfig(oft_block_size=4, r=0, target_modules=["0", "2"]),
        LoKrConfig(r=2, target_modules=["0", "2"]),
    ):
        model = get_peft_model(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)), kind).train()
        data = torch.randn(3, 8)
        answers.append(trained(model, lambda: model(data).square().mean()))
    return answers


def prefix_tuning() -> Any:
    """Prefix tuning by peft: learned prefixes for the keys and values of every layer."""
    from peft import PrefixTuningConfig, TaskType, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    base = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=24, n_embd=16, n_layer=2, n_head=2))
    config = PrefixTuningConfig(
        task_type=TaskType.CAUSAL_LM, num_virtual_tokens=3, prefix_projection=True, encoder_hidden_size=8
    )
    model = get_peft_model(base, config)
    tokens = torch.randint(40, (2, 6))
    return trained(model.train(), lambda: model(input_ids=tokens, labels=tokens).loss)


def prompt_and_ia3() -> Any:
    """Prompt tuning and (IA)3 by peft on a classifier."""
    from peft import IA3Config, PromptTuningConfig, TaskType, get_peft_model
    from transformers import BertConfig, BertForSequenceClassification

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


def torchao_int8() -> Any:
    """torchao quantises the weights of a network to 8 bits: a tensor subclass with its own operators."""
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_

    data, answers = torch.randn(4, 32), []
    for config in (Int8WeightOnlyConfig(), Int8DynamicActivationInt8WeightConfig()):
        model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16)).eval()
        quantize_(model, config)
        with torch.no_grad():
            answers.append(model(data))
    return answers


def torchao_quantisation_aware() -> Any:
    """Quantisation-aware training by torchao: fake-quantised weights and activations."""
    from torchao.quantization.qat import Int8DynActInt4WeightQATQuantizer

    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    model = Int8DynActInt4WeightQATQuantizer(groupsize=32).prepare(model).train()
    data = torch.randn(3, 32)
    return trained(model, lambda: model(data).square().mean())


def torchao_sparsity() -> Any:
    """The Wanda sparsifier of torchao: half of a layer's weights are masked, then the network is trained."""
    from torchao.sparsity import WandaSparsifier

    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    sparsifier = WandaSparsifier(sparsity_level=0.5)
    sparsifier.prepare(model, config=[{"tensor_fqn": "0.weight"}])
    data = torch.randn(5, 16)
    with torch.no_grad():
        model(data)
    sparsifier.step()
    sparsifier.squash_mask()
    return trained(model, lambda: model(data).square().mean())
