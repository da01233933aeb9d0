"""Programs of public bug reports about MindSpore: `python mindspore_reports.py NUMBER VARIANT` runs variant a or b."""

import sys

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

number, variant = int(sys.argv[1]), sys.argv[2]
ms.set_context(mode=ms.GRAPH_MODE if variant == "b" else ms.PYNATIVE_MODE, device_target="CPU")
rng = np.random.default_rng(0)


def cell(f):
    class Net(nn.Cell):
        def construct(self, *inputs):
            return f(*inputs)

    return Net()


if number == 345:
    x, w = Tensor(rng.normal(size=(1, 3, 8, 8)), ms.float32), Tensor(rng.normal(size=(4, 3, 3, 3)), ms.float32)

    def f(x, w):
        return ops.conv2d(x, w, stride=2, padding=1, pad_mode="pad")

    print(cell(f)(x, w).sum())
elif number == 353:
    x, y = Tensor(rng.normal(size=(2, 5)), ms.float32), Tensor(rng.normal(size=(5, 2)), ms.float32)

    def f(x, y):
        return ops.matmul(x, y)

    print(cell(f)(x, y).sum())
elif number == 348:

    def f(x):
        return ops.tanh(x)

    print(cell(f)(Tensor(rng.normal(size=(10, 3, 28, 28)), ms.float32)).sum())
elif number == 274:

    def f(x):
        return ops.softmax(x)

    print(cell(f)(Tensor(np.float32([[np.inf, 0, -1, 5]]))))
elif number == 276:

    def f(x):
        return ops.median(x, axis=1)[0]

    print(cell(f)(Tensor(np.float32([[np.inf, 0, -1, np.nan, 5]]))))
elif number == 275:

    def f(x):
        return ops.amax(x, axis=1)

    print(cell(f)(Tensor(np.float32([[np.inf, 0, -1, 2, 5]]))))
elif number == 293:

    def f(x):
        return ops.reciprocal(x) + 1

    print(cell(f)(Tensor(np.float32([0.0, 2.0, -0.5]))))
elif number == 328:
    x = Tensor(rng.normal(size=(8, 32)), ms.float32)
    w = Tensor(rng.normal(size=(32, 16)), ms.float32)
    part = 8 if variant == "a" else 4

    def f(x, w):
        return ops.matmul(x, w)

    print(cell(f)(x[:part], w)[:4].sum())
elif number == 315:  # attention with a mask of the lowest float: NaN
    s = Tensor(rng.normal(size=(1, 4, 4)), ms.float32)
    mask = Tensor(np.full((1, 4, 4), np.finfo(np.float32).min), ms.float32)

    def f(s, m):
        return ops.softmax(s + m + m)

    print(cell(f)(s, mask).sum())
else:
    raise SystemExit(f"no report {number}")
