"""LeNet in GRAPH_MODE: three steps with momentum. `leaky` selects a different activation."""

import sys

import mindspore as ms
from mindspore import nn
from shared import LeNet, batch, filled, report

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_device("CPU")
network = filled(LeNet(0.05 if "leaky" in sys.argv else 0.0))
loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
train = nn.TrainOneStepCell(nn.WithLossCell(network, loss), optimizer)
train.set_train()
losses = [train(*batch(step)) for step in range(3)]
report(losses, network.get_parameters(), optimizer.moments)
