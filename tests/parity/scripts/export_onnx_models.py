"""Exports networks of torchvision and transformers to ONNX, each with its inputs: `export_onnx_models.py FOLDER`.

The weights are random and the sizes small.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.parity import torchvision_schemas  # noqa: F401  # before torchvision and what imports it

# isort: split
import transformers as t
from torchvision import models as v

warnings.simplefilter("ignore")
FOLDER = Path(sys.argv[1])
IDS = torch.arange(12).reshape(2, 6)
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
IMAGE = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
SOUND = torch.randn(1, 400, generator=torch.Generator().manual_seed(0))
SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
EAGER: dict[str, Any] = {"attn_implementation": "eager"}
CLIP: dict[str, Any] = {**SIZES, **EAGER, "max_position_embeddings": 16, "bos_token_id": 0, "eos_token_id": 1}
GPT2 = t.GPT2Config(
    vocab_size=50, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=1, use_cache=False, **EAGER
)
IN_GROUPS: dict[str, Any] = {"num_key_value_heads": 1, "use_cache": False, **SIZES, **EAGER}
T5 = t.T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, use_cache=False)
BART = t.BartConfig(vocab_size=50, d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=32, decoder_ffn_dim=32,
    encoder_attention_heads=2, decoder_attention_heads=2, use_cache=False, **EAGER)  # fmt: skip
STAGES: dict[str, Any] = {"hidden_sizes": [8] * 4, "depths": [1] * 4}
WAV2VEC2 = t.Wav2Vec2Config(conv_dim=[8, 8], conv_stride=[5, 2], conv_kernel=[10, 3], num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
    **SIZES, **EAGER)  # fmt: skip
MODELS: dict[str, tuple[Callable[[], torch.nn.Module], dict[str, torch.Tensor]]] = {
    "resnet": (v.resnet18, {"x": IMAGE}),
    "mobilenet_v2": (v.mobilenet_v2, {"x": IMAGE}),
    "mobilenet_v3": (v.mobilenet_v3_small, {"x": IMAGE}),
    "squeezenet": (v.squeezenet1_1, {"x": IMAGE}),
    "mnasnet": (v.mnasnet0_5, {"x": IMAGE}),
    "densenet": (lambda: v.DenseNet(4, (2, 2), 8), {"x": IMAGE}),
    "regnet": (v.regnet_y_400mf, {"x": IMAGE}),
    "vit": (lambda: v.VisionTransformer(32, 8, 2, 2, 16, 32), {"x": IMAGE}),
    "swin": (lambda: v.SwinTransformer([2, 2], 8, [1, 1], [2, 2], [4, 4]), {"x": IMAGE}),
    "lraspp": (lambda: v.segmentation.lraspp_mobilenet_v3_large(weights_backbone=None), {"input": IMAGE}),
    "bert": (lambda: t.BertForSequenceClassification(t.BertConfig(**SIZES, **EAGER)), {"input_ids": IDS, "attention_mask": MASK}),
    "roberta": (lambda: t.RobertaForMaskedLM(t.RobertaConfig(**SIZES, **EAGER)), {"input_ids": IDS, "attention_mask": MASK}),
    "deberta": (lambda: t.DebertaV2Model(t.DebertaV2Config(**SIZES)), {"input_ids": IDS, "attention_mask": MASK}),
    "gpt2": (lambda: t.GPT2Model(GPT2), {"input_ids": IDS, "attention_mask": MASK}),
    "llama": (lambda: t.LlamaModel(t.LlamaConfig(**IN_GROUPS)), {"input_ids": IDS, "attention_mask": MASK}),
    "t5": (lambda: t.T5Model(T5), {"input_ids": IDS, "attention_mask": MASK, "decoder_input_ids": IDS}),
    "bart": (lambda: t.BartModel(BART), {"input_ids": IDS, "attention_mask": MASK, "decoder_input_ids": IDS}),
    "clip": (lambda: t.CLIPTextModel(t.CLIPTextConfig(**CLIP)), {"input_ids": IDS}),
    "segformer": (lambda: t.SegformerModel(t.SegformerConfig(num_attention_heads=[1] * 4, **STAGES)), {"pixel_values": IMAGE}),
    "wav2vec2": (lambda: t.Wav2Vec2Model(WAV2VEC2), {"input_values": SOUND}),
}  # fmt: skip


class WithNames(torch.nn.Module):
    """A network that is called with its inputs by name. The exporter passes them in order, and networks of transformers have many before them."""

    def __init__(self, network: torch.nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.network, self.names = network, names

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.network(**dict(zip(self.names, inputs, strict=True)))


def export(name: str, model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> None:
    path = FOLDER / f"{name}.onnx"
    named = WithNames(model, tuple(inputs)).train(False)
    torch.onnx.export(named, tuple(inputs.values()), path, input_names=list(inputs), dynamo=False)
    path.with_suffix(".inputs").write_bytes(pickle.dumps({key: value.numpy() for key, value in inputs.items()}))


torch.manual_seed(0)
for name, (make, inputs) in MODELS.items():
    export(name, make(), inputs)
