"""A causal transformer of two blocks in MindSpore: layer norms, GELU, clipped gradients, SGD with decay."""

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

WIDTH, HEADS, TOKENS, VOCABULARY = 16, 4, 6, 23

ms.set_context(mode=ms.GRAPH_MODE)
numbers = np.random.default_rng(1)


def matrix(name, rows, columns):
    return Parameter(Tensor(numbers.normal(0, 0.3, (rows, columns)).astype(np.float32)), name=name)


class Attention(nn.Cell):
    def __init__(self):
        super().__init__()
        self.qkv = matrix("qkv", WIDTH, 3 * WIDTH)
        self.out = matrix("out", WIDTH, WIDTH)
        self.mask = Tensor(np.triu(np.ones((TOKENS, TOKENS)), 1).astype(bool))  # <mask>

    def heads(self, x):
        return ops.transpose(ops.reshape(x, (2, TOKENS, HEADS, WIDTH // HEADS)), (0, 2, 1, 3))  # <heads>

    def construct(self, x):
        q, k, v = ops.split(ops.matmul(x, self.qkv), WIDTH, axis=-1)  # <qkv>
        q, k, v = self.heads(q), self.heads(k), self.heads(v)
        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2)))  # <scores>
        scores = scores / math.sqrt(WIDTH // HEADS)  # <scale>
        scores = ops.masked_fill(scores, self.mask, -1e9)  # <masked>
        weights = ops.softmax(scores, -1)  # <softmax>
        mixed = ops.matmul(weights, v)  # <values>
        mixed = ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (2, TOKENS, WIDTH))  # <join>
        return ops.matmul(mixed, self.out)  # <attention-out>


class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm((WIDTH,), epsilon=1e-5)  # <norm1-init>
        self.norm2 = nn.LayerNorm((WIDTH,), epsilon=1e-5)  # <norm2-init>
        self.attention = Attention()
        self.up = matrix("up", WIDTH, 4 * WIDTH)
        self.down = matrix("down", 4 * WIDTH, WIDTH)

    def construct(self, x):
        x = x + self.attention(self.norm1(x))  # <residual1>
        hidden = ops.matmul(self.norm2(x), self.up)  # <up>
        hidden = ops.gelu(hidden, approximate="tanh")  # <gelu>
        return x + ops.matmul(hidden, self.down)  # <residual2>


class Model(nn.Cell):
    def __init__(self):
        super().__init__()
        self.tokens = matrix("tokens", VOCABULARY, WIDTH)
        self.positions = matrix("positions", TOKENS, WIDTH)
        self.blocks = nn.CellList([Block(), Block()])
        self.norm = nn.LayerNorm((WIDTH,), epsilon=1e-5)  # <norm-init>
        self.head = matrix("head", WIDTH, VOCABULARY)

    def construct(self, ids):
        x = ops.gather(self.tokens, ids, 0) + self.positions  # <embed>
        for block in self.blocks:
            x = block(x)  # <block>
        return ops.matmul(self.norm(x), self.head)  # <head>


class Loss(nn.Cell):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def construct(self, ids, targets):
        logits = ops.reshape(self.model(ids), (-1, VOCABULARY))
        return ops.cross_entropy(logits, ops.reshape(targets, (-1,)), reduction="sum") / 12  # <loss>


model = Model()
decayed = [{"params": model.trainable_params(), "weight_decay": 0.01}]  # <decay>
optimizer = nn.SGD(decayed, learning_rate=0.1)  # <optimizer>
compute = ops.value_and_grad(Loss(model), None, optimizer.parameters)


@ms.jit
def train(ids, targets):
    loss, gradients = compute(ids, targets)  # <gradient>
    gradients = ops.clip_by_global_norm(gradients, 1.0)  # <clip>
    optimizer(gradients)  # <update>
    return loss


for step in range(1):
    window = numbers.integers(0, VOCABULARY, (2, TOKENS + 1))  # <window>
    loss = train(Tensor(window[:, :-1], ms.int32), Tensor(window[:, 1:], ms.int32))  # <call>
    print(f"step {step} loss {float(loss.asnumpy())!r}")
