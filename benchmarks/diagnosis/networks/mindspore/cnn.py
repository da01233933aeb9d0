"""A convolutional classifier in MindSpore: two blocks with batch norm, a residual, max pooling, SGD with momentum."""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

MODE = "graph"  # <mode>
CHANNELS, CLASSES = 6, 5

ms.set_context(mode=ms.GRAPH_MODE if MODE == "graph" else ms.PYNATIVE_MODE)
drawn = np.random.default_rng(2)
images = drawn.normal(0.2, 1.0, (8, 3, 8, 8)).astype(np.float32)  # <images>
labels = drawn.integers(0, CLASSES, 8).astype(np.int32)  # <labels>


def weights(*shape):
    return Tensor(drawn.normal(0, 0.25, shape).astype(np.float32))


def convolution(given, made, **options):
    return nn.Conv2d(given, made, 3, weight_init=weights(made, given, 3, 3), **options)  # <conv>


class Model(nn.Cell):
    def __init__(self):
        super().__init__()
        self.stem = convolution(3, CHANNELS)  # <stem-init>
        self.norm1 = nn.BatchNorm2d(CHANNELS, eps=1e-5, momentum=0.9)  # <norm1-init>
        self.second = convolution(CHANNELS, CHANNELS)  # <second-init>
        self.norm2 = nn.BatchNorm2d(CHANNELS, eps=1e-5, momentum=0.9)  # <norm2-init>
        self.pool = nn.MaxPool2d(2, 2)  # <pool-init>
        self.head = Parameter(weights(CHANNELS, CLASSES), name="head")
        self.bias = Parameter(weights(CLASSES), name="bias")

    def construct(self, x):
        h = self.stem(x)  # <stem>
        h = self.norm1(h)  # <norm1>
        h = ops.relu(h)  # <relu1>
        r = self.second(h)  # <second>
        r = self.norm2(r)  # <norm2>
        h = ops.relu(h + r)  # <residual>
        h = self.pool(h)  # <pool>
        pooled = ops.mean(h, (2, 3))  # <average>
        return ops.matmul(pooled, self.head) + self.bias  # <head>


class Loss(nn.Cell):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def construct(self, x, wanted):
        logs = ops.log_softmax(self.model(x), -1)  # <log-softmax>
        hits = ops.one_hot(wanted, CLASSES, Tensor(0.92, ms.float32), Tensor(0.02, ms.float32))  # <smooth>
        return -(hits * logs).sum() / 4  # <loss>


model = Model()
network = Loss(model).set_train()  # <train>
optimizer = nn.Momentum(model.trainable_params(), learning_rate=0.05, momentum=0.9)  # <optimizer>
compute = ops.value_and_grad(network, None, optimizer.parameters)


def step(x, wanted):
    loss, gradients = compute(x, wanted)  # <gradients>
    optimizer(gradients)  # <step>
    return loss


if MODE == "graph":
    step = ms.jit(step)
for number in range(2):
    part = slice(4 * number, 4 * number + 4)  # <part>
    loss = step(Tensor(images[part]), Tensor(labels[part]))  # <call>
    print(f"step {number} loss {float(loss.asnumpy())!r}")
