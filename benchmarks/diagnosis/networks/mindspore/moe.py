"""A mixture of experts in MindSpore: top-2 routing, a balancing loss, RMS norm, SGD with clipped values."""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

MODE = "graph"  # <mode>
WIDTH, EXPERTS, ROWS = 8, 4, 10

ms.set_context(mode=ms.GRAPH_MODE if MODE == "graph" else ms.PYNATIVE_MODE)
drawn = np.random.default_rng(4)
inputs = drawn.normal(0, 1, (2 * ROWS, WIDTH)).astype(np.float32)  # <inputs>
outputs = np.tanh(inputs[:, ::-1] * 1.5).astype(np.float32)  # <outputs>


def weights(*shape):
    return Tensor(drawn.normal(0, 0.4, shape).astype(np.float32))


class Norm(nn.Cell):
    def __init__(self):
        super().__init__()
        self.scale = Parameter(ops.ones(WIDTH, ms.float32), name="scale")

    def construct(self, x):
        power = ops.mean(ops.square(x), -1, True)  # <power>
        return x * ops.rsqrt(power + 1e-6) * self.scale  # <norm>


class Experts(nn.Cell):
    def __init__(self):
        super().__init__()
        self.router = Parameter(weights(WIDTH, EXPERTS), name="router")
        self.up = Parameter(weights(EXPERTS, WIDTH, 2 * WIDTH), name="up")
        self.gate = Parameter(weights(EXPERTS, WIDTH, 2 * WIDTH), name="gate")
        self.down = Parameter(weights(EXPERTS, 2 * WIDTH, WIDTH), name="down")

    def construct(self, x):
        scores = ops.matmul(x, self.router)  # <router>
        odds = ops.softmax(scores, -1)  # <odds>
        best, chosen = ops.topk(odds, 2)  # <top>
        best = best / ops.sum(best, -1, True)  # <renormalise>
        hits = ops.one_hot(chosen, EXPERTS, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))  # <hits>
        share = ops.sum(hits * ops.expand_dims(best, 2), 1)  # <share>
        each = ops.broadcast_to(ops.expand_dims(x, 0), (EXPERTS, ROWS, WIDTH))  # <copies>
        gated = ops.silu(ops.bmm(each, self.gate))  # <gated>
        hidden = gated * ops.bmm(each, self.up)  # <hidden>
        found = ops.bmm(hidden, self.down)  # <found>
        mixed = ops.sum(ops.expand_dims(ops.transpose(share, (1, 0)), 2) * found, 0)  # <mixed>
        load = ops.mean(hits[:, 0], 0)  # <load>
        return mixed, EXPERTS * ops.sum(load * ops.mean(odds, 0))  # <balance>


class Loss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = Parameter(weights(WIDTH, WIDTH), name="first")
        self.last = Parameter(weights(WIDTH, WIDTH), name="last")
        self.norm = Norm()
        self.experts = Experts()

    def construct(self, x, wanted):
        h = self.norm(ops.matmul(x, self.first))  # <first>
        mixed, balance = self.experts(h)  # <mixture>
        found = ops.matmul(h + mixed, self.last)  # <residual>
        error = found - wanted  # <error>
        return ops.mean(ops.square(error)) + 0.01 * balance  # <loss>


network = Loss()
optimizer = nn.SGD(network.trainable_params(), learning_rate=0.3)  # <optimizer>
compute = ops.value_and_grad(network, None, optimizer.parameters)


def step(x, wanted):
    loss, gradients = compute(x, wanted)  # <gradients>
    gradients = ops.clip_by_value(gradients, -0.05, 0.05)  # <bound>
    optimizer(gradients)  # <step>
    return loss


if MODE == "graph":
    step = ms.jit(step)
for number in range(2):
    rows = slice(ROWS * number, ROWS * number + ROWS)  # <rows>
    loss = step(Tensor(inputs[rows]), Tensor(outputs[rows]))  # <call>
    print(f"step {number} loss {float(loss.asnumpy())!r}")
