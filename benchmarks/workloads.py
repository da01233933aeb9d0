"""The training steps of the benchmarks: ResNet-18 on 64 x 64 images, a four-layer GPT, and smaller networks.

Sizes: ResNet batch 8 of 3x64x64, 10 classes, in-place ReLU and add. GPT: 4 pre-norm layers, width 256, 4 heads, 128 tokens,
batch 4, vocabulary 1000, explicit attention with a boolean causal mask filled with -inf. Small ResNet: 6 blocks of 16 to 64 channels,
batch 32 of 3x32x32. MLP: 20 times Linear(32), Tanh, batch 8. Cross entropy, SGD with momentum 0.9.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

Step = Callable[[], None]


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += self.shortcut(x)
        result: Tensor = self.relu(y)
        return result


class ResNet(nn.Module):
    """A stem with as many output channels as the first of `widths`, a block of each width, and a head."""

    def __init__(self, stem: nn.Module, widths: Sequence[int]) -> None:
        super().__init__()
        self.stem = stem
        pairs = itertools.pairwise((widths[0], *widths))
        self.blocks = nn.Sequential(
            *(BasicBlock(before, after, 1 if after == before else 2) for before, after in pairs)
        )
        self.head = nn.Linear(widths[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return result


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, tokens: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.register_buffer("mask", torch.ones(tokens, tokens, dtype=torch.bool).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.attention(self.norm1(x)).chunk(3, -1)
        q, k, v = (t.reshape(batch, tokens, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-2, -1) / (width / self.heads) ** 0.5
        weights = scores.masked_fill(self.get_buffer("mask"), float("-inf")).softmax(-1)
        x = x + self.projection((weights @ v).transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, width: int = 256, heads: int = 4, tokens: int = 128, vocabulary: int = 1000) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(tokens, width)
        self.layers = nn.Sequential(*(Layer(width, heads, tokens) for _ in range(4)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        result: Tensor = self.head(self.norm(self.layers(x)))
        return result


def resnet18(width: int = 64) -> ResNet:
    stem = nn.Sequential(
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
    )
    return ResNet(stem, [width * factor for factor in (1, 1, 2, 2, 4, 4, 8, 8)])


def resnet_step() -> Step:
    """One training step of the ResNet on a fixed batch."""
    torch.manual_seed(0)
    return _step(resnet18(), torch.randn(8, 3, 64, 64), torch.randint(10, (8,)))


def small_resnet_step() -> Step:
    """The same operators, 4 channels wide on 2 images of 32 x 32: almost no arithmetic."""
    torch.manual_seed(0)
    return _step(resnet18(4), torch.randn(2, 3, 32, 32), torch.randint(10, (2,)))


def gpt_step(batch: int = 4) -> Step:
    """One training step of the GPT on a fixed batch."""
    torch.manual_seed(0)
    return _step(GPT(), torch.randint(1000, (batch, 128)), torch.randint(1000, (batch * 128,)))


def small_gpt_step() -> Step:
    """The same operators, 16 wide on 8 tokens: almost no arithmetic."""
    torch.manual_seed(0)
    return _step(GPT(16, 4, 8, 50), torch.randint(50, (1, 8)), torch.randint(50, (8,)))


def _step(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        output = model(inputs)
        functional.cross_entropy(output.reshape(targets.numel(), -1), targets).backward()
        optimizer.step()

    return step


def narrow_resnet_step() -> Step:
    """One training step of the small ResNet on a fixed batch."""
    torch.manual_seed(0)
    stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
    return _step(ResNet(stem, (16, 16, 32, 32, 64, 64)), torch.randn(32, 3, 32, 32), torch.randint(10, (32,)))


def mlp_step() -> Step:
    """One training step of 20 tiny linear layers on a fixed batch: about 450 operators, and almost no arithmetic."""
    torch.manual_seed(0)
    layers = [layer for _ in range(20) for layer in (nn.Linear(32, 32), nn.Tanh())]
    return _step(nn.Sequential(*layers), torch.randn(8, 32), torch.randint(32, (8,)))


class Workload(NamedTuple):
    """Creates a training step, and one with the same operators and almost no arithmetic."""

    full: Callable[[], Step]
    small: Callable[[], Step]


WORKLOADS = {"ResNet": Workload(resnet_step, small_resnet_step), "GPT": Workload(gpt_step, small_gpt_step)}


STEPS: dict[str, Callable[[], Step]] = {
    "ResNet-18": resnet_step,
    "small ResNet": narrow_resnet_step,
    "GPT": lambda: gpt_step(8),
    "MLP": mlp_step,
}
"""Ordered from large operators to tiny ones."""
