"""A residual block, a transformer block and a recurrent cell in MindSpore: networks_mindspore.py; trains each for one step."""

from __future__ import annotations

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops


class Residual(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, pad_mode="pad", padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.short = nn.Conv2d(3, 8, 1)
        self.relu = nn.ReLU()
        self.pool = nn.AvgPool2d(2, 2)
        self.drop = nn.Dropout(p=0.1)
        self.out = nn.Dense(8, 10)

    def construct(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.norm(self.conv(x)) + self.short(x)))
        return self.out(self.drop(x.mean((2, 3))))


class Transformer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.norm = nn.LayerNorm((16,))
        self.qkv = nn.Dense(16, 48)
        self.mlp = nn.SequentialCell(nn.Dense(16, 32), nn.GELU(approximate=False), nn.Dense(32, 16))
        self.out = nn.Dense(16, 10)

    def construct(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        q, k, v = ops.split(self.qkv(self.norm(x)), 16, axis=-1)
        x = x + ops.matmul(ops.softmax(ops.matmul(q, k.swapaxes(1, 2)) / 4.0, -1), v)
        x = x + self.mlp(x)
        return self.out(x.mean(1))


class Recurrent(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(8, 16)
        self.out = nn.Dense(16, 10)

    def construct(self, x: Tensor) -> Tensor:
        state = ops.zeros((4, 16), mindspore.float32), ops.zeros((4, 16), mindspore.float32)
        for position in range(3):
            state = self.cell(x[:, position], state)
        return self.out(state[0])


def main() -> None:
    mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="CPU")
    mindspore.set_seed(1)
    random = np.random.default_rng(0)
    labels = Tensor(random.integers(0, 10, 4).astype(np.int32))
    images, tokens = random.standard_normal((4, 3, 8, 8)), random.integers(0, 32, (4, 6))
    residual, transformer, recurrent = Residual(), Transformer(), Recurrent()
    for network, x, optimizer in (
        (residual, images.astype(np.float32), nn.SGD(residual.trainable_params(), 0.1, momentum=0.9)),
        (transformer, tokens.astype(np.int32), nn.AdamWeightDecay(transformer.trainable_params(), 1e-3)),
        (recurrent, images[:, :, 0].astype(np.float32), nn.Adam(recurrent.trainable_params(), 1e-3)),
    ):
        loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        train = nn.TrainOneStepCell(nn.WithLossCell(network, loss), optimizer)
        train.set_train()
        print("loss", train(Tensor(x), labels))


if __name__ == "__main__":
    main()
