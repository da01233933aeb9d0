"""A convolutional classifier in MindSpore: batch norm, a residual, max pooling, SGD."""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

CHANNELS, CLASSES = 6, 5

ms.set_context(mode=ms.GRAPH_MODE)
numbers = np.random.default_rng(2)
images = numbers.normal(0.2, 1.0, (8, 8, 8, 3)).astype(np.float32)  # <images>
labels = numbers.integers(0, CLASSES, 8)  # <labels>


def kernel(size, given, made):
    return numbers.normal(0, 0.25, (size, size, given, made)).astype(np.float32)


class Block(nn.Cell):
    def __init__(self, given):
        super().__init__()
        weight = np.ascontiguousarray(kernel(3, given, CHANNELS).transpose(3, 2, 0, 1))
        self.conv = nn.Conv2d(given, CHANNELS, 3, weight_init=Tensor(weight))  # <conv-init>
        self.norm = nn.BatchNorm2d(CHANNELS, eps=1e-5, momentum=0.9)  # <norm-init>

    def construct(self, x):
        x = self.conv(x)  # <conv>
        return self.norm(x)  # <norm>


class Model(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.second = Block(3), Block(CHANNELS)
        self.pool = nn.MaxPool2d(2, 2)  # <pool-init>
        self.head = Parameter(Tensor(kernel(1, CHANNELS, CLASSES)[0, 0]), name="head")
        self.offset = Parameter(Tensor(np.zeros(CLASSES, np.float32)), name="offset")

    def construct(self, x):
        x = ops.relu(self.first(x))  # <relu1>
        x = ops.relu(x + self.second(x))  # <residual>
        x = self.pool(x)  # <pool>
        x = ops.mean(x, (2, 3))  # <average>
        return ops.matmul(x, self.head) + self.offset  # <head>


class Loss(nn.Cell):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def construct(self, x, wanted):
        return ops.cross_entropy(self.model(x), wanted, label_smoothing=0.1)  # <loss>


model = Model()
optimizer = nn.SGD(model.trainable_params(), learning_rate=0.05)  # <optimizer>
compute = ops.value_and_grad(Loss(model).set_train(), None, optimizer.parameters)


@ms.jit
def train(x, wanted):
    loss, gradients = compute(x, wanted)  # <gradient>
    optimizer(gradients)  # <update>
    return loss


for step in range(2):
    part = slice(4 * step, 4 * step + 4)  # <part>
    x = np.ascontiguousarray(images[part].transpose(0, 3, 1, 2))
    loss = train(Tensor(x), Tensor(labels[part], ms.int32))  # <call>
    print(f"step {step} loss {float(loss.asnumpy())!r}")
