"""A recurrent classifier in MindSpore: a GRU over time, written by hand, with momentum."""

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

WIDTH, TOKENS, VOCABULARY, BATCH = 8, 4, 17, 3

ms.set_context(mode=ms.GRAPH_MODE)
numbers = np.random.default_rng(3)


def matrix(name, *shape):
    return Parameter(Tensor(numbers.normal(0, 0.4, shape).astype(np.float32)), name=name)


class Recurrent(nn.Cell):
    def __init__(self):
        super().__init__()
        self.x_gates, self.h_gates = matrix("x_gates", WIDTH, 2 * WIDTH), matrix("h_gates", WIDTH, 2 * WIDTH)
        self.offset = matrix("offset", 2 * WIDTH)
        self.x_new, self.h_new = matrix("x_new", WIDTH, WIDTH), matrix("h_new", WIDTH, WIDTH)

    def construct(self, h, x):
        gates = ops.sigmoid(ops.matmul(x, self.x_gates) + ops.matmul(h, self.h_gates) + self.offset)  # <gates>
        reset, update = ops.split(gates, WIDTH, axis=-1)  # <split>
        new = ops.tanh(ops.matmul(x, self.x_new) + ops.matmul(reset * h, self.h_new))  # <new>
        return update * h + (1.0 - update) * new  # <mix>


class Model(nn.Cell):
    def __init__(self):
        super().__init__()
        self.tokens = matrix("tokens", VOCABULARY, WIDTH)
        self.cell = Recurrent()
        self.head = matrix("head", WIDTH, VOCABULARY)

    def construct(self, ids):
        x = ops.gather(self.tokens, ids, 0) * 2.0  # <embed>
        h, states = ops.zeros((BATCH, WIDTH), ms.float32), []  # <start>
        for step in range(TOKENS):
            h = self.cell(h, x[:, step])  # <advance>
            states.append(h)
        return ops.matmul(ops.stack(states, 1), self.head) / math.sqrt(WIDTH)  # <head>


class Loss(nn.Cell):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def construct(self, ids, targets):
        logits = ops.reshape(self.model(ids), (-1, VOCABULARY))
        return ops.cross_entropy(logits, ops.reshape(targets, (-1,)))  # <loss>


model = Model()
optimizer = nn.Momentum(model.trainable_params(), learning_rate=0.1, momentum=0.9)  # <optimizer>
compute = ops.value_and_grad(Loss(model), None, optimizer.parameters)


@ms.jit
def train(ids, targets):
    loss, gradients = compute(ids, targets)  # <gradient>
    optimizer(gradients)  # <update>
    return loss


for step in range(2):
    window = numbers.integers(0, VOCABULARY, (BATCH, TOKENS + 1))
    loss = train(Tensor(window[:, :-1], ms.int32), Tensor(window[:, 1:], ms.int32))  # <call>
    print(f"step {step} loss {float(loss.asnumpy())!r}")
