"""Two small networks exported from PyTorch: a convnet and a transformer."""

from __future__ import annotations

import io
import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1)
        self.fc = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(y + self.conv2(y))
        result: Tensor = self.fc(y.mean((2, 3)))
        return result


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        length = tokens.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(-2, -1) / 8**0.5).masked_fill(mask, float("-inf"))
        result: Tensor = self.out(x + scores.softmax(-1) @ v)
        return result


@cache
def exported(kind: str, dynamo: bool = False) -> tuple[bytes, dict[str, Any]]:
    """The file of a network, and feeds for it."""
    torch.manual_seed(0)
    model: nn.Module = ConvNet() if kind == "convnet" else Transformer()
    given = torch.randn(2, 3, 6, 6) if kind == "convnet" else torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the older exporter is deprecated, but its files are in use
        if dynamo:
            program = torch.onnx.export(model.eval(), (given,), dynamo=True, input_names=["x"], verbose=False)
            assert program is not None
            return program.model_proto.SerializeToString(), {"x": given.numpy()}
        content = io.BytesIO()
        torch.onnx.export(
            model.eval(),
            (given,),
            content,  # type: ignore[arg-type]  # the older exporter accepts a stream too
            dynamo=False,
            input_names=["x"],
            do_constant_folding=False,
            training=torch.onnx.TrainingMode.PRESERVE,
        )
    return content.getvalue(), {"x": given.numpy()}
