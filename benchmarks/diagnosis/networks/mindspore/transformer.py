"""A transformer of two blocks in MindSpore, trained with gradient clipping and SGD."""

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

MODE = "graph"  # <mode>
WIDTH, HEADS, TOKENS, VOCABULARY = 16, 4, 6, 11

ms.set_context(mode=ms.GRAPH_MODE if MODE == "graph" else ms.PYNATIVE_MODE)
drawn = np.random.default_rng(1)


def weights(*shape):
    return Tensor((drawn.standard_normal(shape) / math.sqrt(shape[0])).astype(np.float32))


class Attention(nn.Cell):
    def __init__(self):
        super().__init__()
        self.qkv = Parameter(weights(WIDTH, 3 * WIDTH), name="qkv")
        self.out = Parameter(weights(WIDTH, WIDTH), name="out")
        self.mask = Tensor(np.triu(np.ones((TOKENS, TOKENS)), 1).astype(bool))  # <mask-init>

    def heads(self, x):
        return ops.transpose(ops.reshape(x, (2, TOKENS, HEADS, WIDTH // HEADS)), (0, 2, 1, 3))  # <heads>

    def construct(self, x):
        q, k, v = ops.split(ops.matmul(x, self.qkv), WIDTH, axis=-1)  # <qkv>
        q, k, v = self.heads(q), self.heads(k), self.heads(v)
        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2)))  # <scores>
        scores = scores / math.sqrt(WIDTH // HEADS)  # <scale>
        scores = ops.masked_fill(scores, self.mask, -1e9)  # <mask>
        shares = ops.softmax(scores, -1)  # <softmax>
        mixed = ops.matmul(shares, v)  # <values>
        mixed = ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (2, TOKENS, WIDTH))  # <join>
        return ops.matmul(mixed, self.out)  # <projection>


class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm((WIDTH,), epsilon=1e-5)  # <norm1-init>
        self.norm2 = nn.LayerNorm((WIDTH,), epsilon=1e-5)  # <norm2-init>
        self.attention = Attention()
        self.up = Parameter(weights(WIDTH, 4 * WIDTH), name="up")
        self.down = Parameter(weights(4 * WIDTH, WIDTH), name="down")

    def construct(self, x):
        x = x + self.attention(self.norm1(x))  # <residual1>
        hidden = ops.gelu(ops.matmul(self.norm2(x), self.up), approximate="tanh")  # <gelu>
        return x + ops.matmul(hidden, self.down)  # <residual2>


class Model(nn.Cell):
    def __init__(self):
        super().__init__()
        self.tokens = Parameter(weights(VOCABULARY, WIDTH), name="tokens")
        self.positions = Parameter(weights(TOKENS, WIDTH), name="positions")
        self.blocks = nn.CellList([Block(), Block()])
        self.norm = nn.LayerNorm((WIDTH,), epsilon=1e-5)  # <norm-init>

    def construct(self, ids):
        x = ops.gather(self.tokens, ids, 0)  # <tokens>
        x = x + self.positions  # <positions>
        for block in self.blocks:
            x = block(x)  # <block>
        return ops.matmul(self.norm(x), ops.transpose(self.tokens, (1, 0)))  # <head>


class Loss(nn.Cell):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def construct(self, ids, targets):
        chances = ops.log_softmax(self.model(ids), -1)  # <log-softmax>
        hits = ops.one_hot(targets, VOCABULARY, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))  # <targets>
        return -(chances * hits).sum() / 12  # <loss>


model = Model()
network = Loss(model)
optimizer = nn.SGD(model.trainable_params(), learning_rate=0.1, weight_decay=0.01)  # <optimizer>
compute = ops.value_and_grad(network, None, optimizer.parameters)


def step(ids, targets):
    loss, gradients = compute(ids, targets)  # <gradients>
    gradients = ops.clip_by_global_norm(gradients, 1.0)  # <clip>
    optimizer(gradients)  # <step>
    return loss


if MODE == "graph":
    step = ms.jit(step)
for number in range(2):
    ids = drawn.integers(0, VOCABULARY, (2, TOKENS + 1))  # <data>
    loss = step(Tensor(ids[:, :-1], ms.int32), Tensor(ids[:, 1:], ms.int32))  # <call>
    print(f"step {number} loss {float(loss.asnumpy())!r}")
