"""A network in PyNative mode that calls an @ms.jit function, and is trained through it."""

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from shared import filled, numbers, report

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_device("CPU")


@ms.jit
def head(x: Tensor, weight: Tensor) -> Tensor:
    return ops.tanh(ops.matmul(x, weight))


network = filled(nn.SequentialCell(nn.Dense(6, 5), nn.ReLU(), nn.Dense(5, 4)))
weight = Parameter(Tensor(numbers(4, 2)), name="w")
optimizer = nn.Momentum([*network.trainable_params(), weight], 0.1, 0.9)
gradients_of = ms.value_and_grad(lambda x: ops.square(head(network(x), weight)).mean(), None, optimizer.parameters)
losses, gradients = [], []
for step in range(3):
    value, found = gradients_of(Tensor(numbers(3, 6, seed=step)))
    optimizer(found)
    losses.append(value)
    gradients.extend(found)
report(losses, gradients, optimizer.parameters)
