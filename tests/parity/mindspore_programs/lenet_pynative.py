"""LeNet in PyNative mode, where only the optimizer is compiled: three steps with momentum."""

import mindspore as ms
from mindspore import nn
from shared import LeNet, batch, filled, report

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_device("CPU")
network = filled(LeNet())
loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
gradients_of = ms.value_and_grad(lambda x, y: loss(network(x), y), None, optimizer.parameters)
losses, gradients = [], []
for step in range(3):
    value, found = gradients_of(*batch(step))
    optimizer(found)
    losses.append(value)
    gradients.extend(found)
report(losses, gradients, network.get_parameters(), optimizer.moments)
