"""Two networks that are compiled separately and called alternately: MindSpore counts their iterations in a special way."""

import mindspore as ms
from mindspore import Tensor, nn, ops
from shared import filled, numbers, report

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_device("CPU")


class Encoder(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(4, 3)

    def construct(self, x: Tensor) -> Tensor:
        return ops.relu(self.fc(x))


class Head(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        return ops.exp(x) * 2


encoder, head = filled(Encoder()), Head()
report([head(encoder(Tensor(numbers(2, 4, seed=step)))) for step in range(3)])
