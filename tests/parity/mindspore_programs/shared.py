"""Shared by the programs: LeNet, numbers from a seed, and the printed digest."""

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from mindspore import Tensor, nn


class LeNet(nn.Cell):
    def __init__(self, slope: float = 0.0) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, pad_mode="valid", has_bias=True)
        self.conv2 = nn.Conv2d(6, 16, 5, pad_mode="valid", has_bias=True)
        self.fc1 = nn.Dense(400, 120)
        self.fc2 = nn.Dense(120, 84)
        self.fc3 = nn.Dense(84, 10)
        self.relu = nn.LeakyReLU(slope) if slope else nn.ReLU()
        self.pool = nn.MaxPool2d(2, 2)
        self.flatten = nn.Flatten()

    def construct(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.conv1(x)))
        x = self.pool(self.relu(self.conv2(x)))
        x = self.flatten(x)
        x = self.relu(self.fc1(x))
        x = self.relu(self.fc2(x))
        return self.fc3(x)


def numbers(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def filled(network: nn.Cell) -> nn.Cell:
    """Fill the network's parameters from a seed."""
    for number, parameter in enumerate(network.get_parameters()):
        parameter.set_data(Tensor(0.1 * numbers(*parameter.shape, seed=number)))
    return network


def batch(step: int, size: int = 4) -> tuple[Tensor, Tensor]:
    labels = np.random.default_rng(step).integers(0, 10, size).astype(np.int32)
    return Tensor(numbers(size, 1, 32, 32, seed=step)), Tensor(labels)


def report(*groups: Iterable[Tensor]) -> None:
    """Print a digest of the bytes of all tensors."""
    digest = hashlib.md5(usedforsecurity=False)
    count = 0
    for group in groups:
        for tensor in group:
            digest.update(tensor.asnumpy().tobytes())
            count += 1
    print("digest", count, digest.hexdigest())
