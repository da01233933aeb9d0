"""A loop whose length depends on the data, and a branch: several graphs, and operators that run several times."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from shared import filled, report

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_device("CPU")


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(4, 4)

    def construct(self, x: Tensor, n: Tensor) -> Tensor:
        i = Tensor(0, ms.int32)
        while i < n:
            x = ops.tanh(self.fc(x))
            i = i + 1
        if x.sum() > 0:  # noqa: SIM108  MindSpore compiles this statement into graphs
            x = ops.relu(x)
        else:
            x = ops.neg(x)
        return x


network = filled(Net())
ones = Tensor(np.ones((2, 4), np.float32))
report([network(ones, Tensor(trips, ms.int32)) for trips in (3, 1, 2)])
