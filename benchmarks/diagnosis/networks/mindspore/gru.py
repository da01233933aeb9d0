"""A recurrent language model in MindSpore: a GRU over time, tied output weights, Adam."""

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

MODE = "graph"  # <mode>
WIDTH, TOKENS, VOCABULARY, BATCH = 8, 4, 17, 2

ms.set_context(mode=ms.GRAPH_MODE if MODE == "graph" else ms.PYNATIVE_MODE)
drawn = np.random.default_rng(3)
text = drawn.integers(0, VOCABULARY, 200).astype(np.int32)  # <text>


def weights(*shape):
    return Tensor(drawn.normal(0, 0.4, shape).astype(np.float32))


class Recurrent(nn.Cell):
    def __init__(self):
        super().__init__()
        self.xg = Parameter(weights(WIDTH, 2 * WIDTH), name="xg")
        self.hg = Parameter(weights(WIDTH, 2 * WIDTH), name="hg")
        self.bg = Parameter(weights(2 * WIDTH), name="bg")
        self.xc = Parameter(weights(WIDTH, WIDTH), name="xc")
        self.hc = Parameter(weights(WIDTH, WIDTH), name="hc")

    def construct(self, hidden, x):
        given = ops.matmul(x, self.xg) + ops.matmul(hidden, self.hg)  # <given>
        gates = ops.sigmoid(given + self.bg)  # <gates>
        reset, update = ops.split(gates, WIDTH, axis=-1)  # <split>
        kept = reset * hidden  # <kept>
        candidate = ops.tanh(ops.matmul(x, self.xc) + ops.matmul(kept, self.hc))  # <candidate>
        return update * hidden + (1.0 - update) * candidate  # <mix>


class Model(nn.Cell):
    def __init__(self):
        super().__init__()
        self.tokens = Parameter(weights(VOCABULARY, WIDTH), name="tokens")
        self.cell = Recurrent()

    def construct(self, ids):
        embedded = ops.gather(self.tokens, ids, 0)  # <embed>
        embedded = embedded * 2.0  # <widen>
        hidden = ops.zeros((BATCH, WIDTH), ms.float32)  # <start>
        states = []
        for place in range(TOKENS):
            hidden = self.cell(hidden, embedded[:, place])  # <advance>
            states.append(hidden)
        stacked = ops.stack(states, 1)  # <stack>
        logits = ops.matmul(stacked, ops.transpose(self.tokens, (1, 0)))  # <logits>
        return logits / math.sqrt(WIDTH)  # <scale>


class Loss(nn.Cell):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def construct(self, ids, targets):
        logs = ops.log_softmax(self.model(ids), -1)  # <log-softmax>
        picked = ops.gather_elements(logs, 2, ops.expand_dims(targets, 2))  # <pick>
        return -ops.mean(picked)  # <loss>


model = Model()
network = Loss(model)
optimizer = nn.Adam(model.trainable_params(), learning_rate=0.02, beta1=0.9, beta2=0.99, eps=1e-6)  # <optimizer>
compute = ops.value_and_grad(network, None, optimizer.parameters)


def step(ids, targets):
    loss, gradients = compute(ids, targets)  # <gradients>
    optimizer(gradients)  # <step>
    return loss


if MODE == "graph":
    step = ms.jit(step)
for number in range(2):
    window = np.stack([text[start : start + TOKENS + 1] for start in (3 + 20 * number, 60 + 20 * number)])  # <window>
    loss = step(Tensor(window[:, :-1]), Tensor(window[:, 1:]))  # <call>
    print(f"step {number} loss {float(loss.asnumpy())!r}")
