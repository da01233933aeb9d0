"""Train a small residual network on scikit-learn's handwritten digits.

Plain PyTorch, without any opdump code.

    python train.py --steps 3
    python train.py --standardize 0      with a bug: the loss is NaN
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """Two convolutions and a skip connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(x + y)


class DigitsResNet(nn.Module):
    """Input: pictures of 8 x 8 with one channel; output: ten scores."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.block1 = ResidualBlock(channels)
        self.block2 = ResidualBlock(channels)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block2(self.block1(self.stem(x)))
        return self.fc(self.pool(x).flatten(1))


def standardized(images: Tensor, epsilon: float) -> Tensor:
    """Give each pixel mean 0 and deviation 1. Some pixels are 0 in all pictures: without an epsilon they become 0 / 0."""
    return (images - images.mean(0)) / (images.std(0) + epsilon)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--standardize", type=float, metavar="EPSILON")
    options = parser.parse_args()

    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    if options.standardize is not None:
        images = standardized(images, options.standardize)
    labels = torch.tensor(digits.target)

    network = DigitsResNet()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    loss_function = nn.CrossEntropyLoss()
    for step in range(options.steps):
        rows = torch.arange(step * options.batch, (step + 1) * options.batch) % len(images)
        loss = loss_function(network(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
