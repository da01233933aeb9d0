"""LeNet in MindSpore: lenet_mindspore.py DATA.npz. Three steps of momentum, with the weights and batches in the file."""

from __future__ import annotations

import sys

import mindspore
import numpy as np
from mindspore import Tensor, nn


class LeNet(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, pad_mode="valid", has_bias=True)
        self.conv2 = nn.Conv2d(6, 16, 5, pad_mode="valid", has_bias=True)
        self.fc1 = nn.Dense(400, 120)
        self.fc2 = nn.Dense(120, 84)
        self.fc3 = nn.Dense(84, 10)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2, 2)
        self.flatten = nn.Flatten()

    def construct(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.conv1(x)))
        x = self.pool(self.relu(self.conv2(x)))
        x = self.flatten(x)
        x = self.relu(self.fc1(x))
        x = self.relu(self.fc2(x))
        return self.fc3(x)


def main(path: str) -> None:
    mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="CPU")
    data = np.load(path)
    network = LeNet()
    for parameter in network.get_parameters():
        parameter.set_data(Tensor(data[parameter.name]))
    optimizer = nn.Momentum(network.trainable_params(), float(data["learning_rate"]), float(data["momentum"]))
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    train = nn.TrainOneStepCell(nn.WithLossCell(network, loss), optimizer)
    train.set_train()
    for images, labels in zip(data["images"], data["labels"], strict=True):
        print("loss", float(train(Tensor(images), Tensor(labels.astype(np.int32))).asnumpy()))


if __name__ == "__main__":
    main(sys.argv[1])
