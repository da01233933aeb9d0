"""LeNet in MindSpore: opdump run -c data_dump.json lenet_mindspore.py."""

from __future__ import annotations

import lenet_data
import mindspore
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


mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="CPU")
network = LeNet()
weights = lenet_data.weights()
for parameter in network.get_parameters():
    layer, name = parameter.name.split(".")
    parameter.set_data(Tensor(weights[layer][name]))
optimizer = nn.Momentum(network.trainable_params(), lenet_data.LEARNING_RATE, lenet_data.MOMENTUM)
loss_of = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
train = nn.TrainOneStepCell(nn.WithLossCell(network, loss_of), optimizer)
train.set_train()

for images, labels in lenet_data.batches():
    loss = train(Tensor(images), Tensor(labels))
    print(f"loss {float(loss.asnumpy()):.6f}")
