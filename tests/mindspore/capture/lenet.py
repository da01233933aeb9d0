"""Trains LeNet for three steps and prints a digest of its losses and parameters: the program of `test_lenet.py`."""

from __future__ import annotations

import hashlib
import sys

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

ms.set_context(mode=ms.GRAPH_MODE if "graph" in sys.argv else ms.PYNATIVE_MODE)
ms.set_seed(1)


class LeNet(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, pad_mode="valid")
        self.conv2 = nn.Conv2d(6, 16, 5, pad_mode="valid")
        self.fc1, self.fc2, self.fc3 = nn.Dense(400, 120), nn.Dense(120, 84), nn.Dense(84, 10)
        self.relu, self.pool, self.flatten = nn.ReLU(), nn.MaxPool2d(2, 2), nn.Flatten()

    def construct(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.conv1(x)))
        x = self.pool(self.relu(self.conv2(x)))
        x = self.relu(self.fc1(self.flatten(x)))
        return self.fc3(self.relu(self.fc2(x)))


network = LeNet()
images = Tensor(np.random.default_rng(0).random((4, 1, 32, 32)).astype(np.float32))
labels = Tensor(np.array([1, 2, 3, 4], np.int32))
loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
optimizer = nn.Momentum(network.trainable_params(), 0.01, 0.9)
train = nn.TrainOneStepCell(nn.WithLossCell(network, loss), optimizer)
digest = hashlib.md5()
for _ in range(3):
    digest.update(train(images, labels).asnumpy().tobytes())
for parameter in network.get_parameters():
    digest.update(parameter.asnumpy().tobytes())
print(digest.hexdigest())
