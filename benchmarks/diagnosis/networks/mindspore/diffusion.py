"""A diffusion block in MindSpore: a noise schedule, time embeddings, group norm, FiLM, a moving average of the parameters."""

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

MODE = "graph"  # <mode>
WIDTH, GROUPS, STEPS, LENGTH = 8, 2, 20, 12

ms.set_context(mode=ms.GRAPH_MODE if MODE == "graph" else ms.PYNATIVE_MODE)
drawn = np.random.default_rng(5)
signals = np.sin(drawn.normal(0, 1, (6, 1, 1)) + np.linspace(0, 3, LENGTH)[:, None]).astype(np.float32)  # <signals>
noises = drawn.normal(0, 1, (6, LENGTH, 1)).astype(np.float32)  # <noises>


def weights(*shape):
    return Tensor(drawn.normal(0, 0.3, shape).astype(np.float32))


class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.enter = Parameter(weights(1, WIDTH), name="enter")
        self.time = Parameter(weights(8, WIDTH), name="time")
        self.film = Parameter(weights(WIDTH, 2 * WIDTH), name="film")
        self.mid = Parameter(weights(WIDTH, WIDTH), name="mid")
        self.leave = Parameter(weights(WIDTH, 1), name="leave")
        self.edge = Tensor(np.zeros((3, 1, WIDTH), np.float32))  # <edge>
        self.places = Tensor(np.arange(4).astype(np.float32))  # <places>

    def embedded(self, times):
        frequencies = ops.exp(self.places * (-math.log(100.0) / 4))  # <frequencies>
        angles = ops.expand_dims(times, 1) * frequencies  # <angles>
        return ops.concat((ops.sin(angles), ops.cos(angles)), -1)  # <embedding>

    def normal(self, x):
        parts = ops.reshape(x, (3, LENGTH, GROUPS, WIDTH // GROUPS))  # <parts>
        centred = parts - ops.mean(parts, (1, 3), True)  # <centred>
        variance = ops.mean(ops.square(centred), (1, 3), True)  # <variance>
        return ops.reshape(centred * ops.rsqrt(variance + 1e-5), (3, LENGTH, WIDTH))  # <normalise>

    def construct(self, noisy, times):
        h = ops.matmul(noisy, self.enter)  # <enter>
        film = ops.matmul(ops.silu(ops.matmul(self.embedded(times), self.time)), self.film)  # <film>
        scale, shift = ops.split(ops.expand_dims(film, 1), WIDTH, axis=-1)  # <halves>
        h = self.normal(h) * (1.0 + scale) + shift  # <modulate>
        h = h + ops.softplus(ops.matmul(h, self.mid))  # <residual>
        padded = ops.concat((self.edge, h, self.edge), 1)  # <pad>
        h = padded[:, :-2] + 0.5 * padded[:, 2:]  # <neighbours>
        return ops.matmul(h, self.leave)  # <leave>


class Loss(nn.Cell):
    def __init__(self, block):
        super().__init__()
        self.block = block
        self.betas = Tensor(np.linspace(1e-3, 0.1, STEPS).astype(np.float32))  # <betas>

    def construct(self, clean, noise, times):
        kept = ops.gather(ops.cumprod(1.0 - self.betas, 0), times, 0)  # <kept>
        kept = ops.reshape(kept, (3, 1, 1))  # <column>
        noisy = ops.sqrt(kept) * clean + ops.sqrt(1.0 - kept) * noise  # <noisy>
        error = self.block(noisy, ops.cast(times, ms.float32)) - noise  # <error>
        return ops.mean(ops.abs(error) + ops.square(error))  # <loss>


class Average(nn.Cell):
    def __init__(self, parameters):
        super().__init__()
        self.parameters = ms.ParameterTuple(parameters)
        self.averages = self.parameters.clone("average", "same")

    def construct(self):
        for average, parameter in zip(self.averages, self.parameters):
            ops.assign(average, 0.95 * average + 0.05 * parameter)  # <average>


block = Block()
network = Loss(block)
optimizer = nn.SGD(block.trainable_params(), learning_rate=0.02)  # <optimizer>
average = Average(block.trainable_params())
compute = ops.value_and_grad(network, None, optimizer.parameters)


def step(clean, noise, times):
    loss, gradients = compute(clean, noise, times)  # <gradients>
    optimizer(gradients)  # <step>
    average()  # <averaged>
    return loss


if MODE == "graph":
    step = ms.jit(step)
for number in range(2):
    part = slice(3 * number, 3 * number + 3)  # <part>
    times = Tensor([3 + number, 9, 17 - number], ms.int32)  # <times>
    loss = step(Tensor(signals[part]), Tensor(noises[part]), times)  # <call>
    print(f"step {number} loss {float(loss.asnumpy())!r}")
