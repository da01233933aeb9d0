"""Tensors of many dtypes, including bfloat16."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from shared import numbers, report

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_device("CPU")


class Net(nn.Cell):
    def construct(self, a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor) -> tuple[Tensor, ...]:
        return (
            ((a + a).astype(ms.bfloat16) * 2).astype(ms.float32),
            b * b,
            ops.logical_and(c, c),
            d + 1,
            ops.sqrt(e),
            ops.cast(d, ms.uint8),
            ops.cast(a, ms.float16) + 1,
            ops.cast(d, ms.int64) * 3,
        )


network = Net()
results = []
for step in range(2):
    a = numbers(3, 4, seed=step)
    arguments = (a, a.astype(np.float64), a > 0, np.arange(6, dtype=np.int8), np.abs(a).astype(np.float16))
    results.extend(network(*map(Tensor, arguments)))
report(results)
