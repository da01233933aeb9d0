"""A detection head in MindSpore: anchors, box regression with smooth L1, focal loss, hard negatives, decoded boxes, SGD."""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

MODE = "graph"  # <mode>
WIDTH, CLASSES, SIDE = 8, 3, 3
ANCHORS = SIDE * SIDE

ms.set_context(mode=ms.GRAPH_MODE if MODE == "graph" else ms.PYNATIVE_MODE)
drawn = np.random.default_rng(6)
features = drawn.normal(0, 1, (4, ANCHORS, WIDTH)).astype(np.float32)  # <features>
boxes = np.sort(drawn.uniform(0, SIDE, (4, ANCHORS, 2, 2)), axis=2).reshape(4, ANCHORS, 4).astype(np.float32)
classes = drawn.integers(0, CLASSES, (4, ANCHORS)).astype(np.int32)  # <classes>


def weights(*shape):
    return Tensor(drawn.normal(0, 0.3, shape).astype(np.float32))


def anchors():
    rows, columns = np.meshgrid(np.arange(SIDE), np.arange(SIDE), indexing="ij")  # <grid>
    centres = np.stack([columns.ravel(), rows.ravel()], axis=-1) + 0.5  # <centres>
    return Tensor(np.concatenate([centres, np.full((ANCHORS, 2), 1.2)], axis=-1).astype(np.float32))  # <anchors>


def decoded(deltas, anchor):
    moves, sizes = ops.split(deltas, 2, axis=-1)  # <parts>
    centre = anchor[:, :2] + moves * anchor[:, 2:]  # <decode-centre>
    size = anchor[:, 2:] * ops.exp(ops.clamp(sizes, -0.5, 0.5))  # <decode-size>
    return ops.concat((centre - size / 2, centre + size / 2), -1)  # <corners>


def overlap(a, b):
    low = ops.maximum(a[..., :2], b[..., :2])  # <low>
    high = ops.minimum(a[..., 2:], b[..., 2:])  # <high>
    inner = ops.prod(ops.relu(high - low), -1)  # <inner>
    first = ops.prod(a[..., 2:] - a[..., :2], -1)  # <first-area>
    second = ops.prod(b[..., 2:] - b[..., :2], -1)  # <second-area>
    return inner / (first + second - inner + 1e-6)  # <iou>


class Loss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.stem = Parameter(weights(WIDTH, WIDTH), name="stem")
        self.box = Parameter(weights(WIDTH, 4), name="box")
        self.kind = Parameter(weights(WIDTH, CLASSES), name="kind")
        self.bias = Parameter(ops.full((CLASSES,), -1.0, dtype=ms.float32), name="bias")
        self.anchors = anchors()

    def construct(self, x, box, kind):
        h = ops.leaky_relu(ops.matmul(x, self.stem), 0.1)  # <stem>
        found = decoded(ops.matmul(h, self.box), self.anchors)  # <found>
        quality = ops.stop_gradient(overlap(found, box))  # <quality>
        logits = ops.matmul(h, self.kind) + self.bias  # <logits>
        odds = ops.sigmoid(logits)  # <odds>
        hits = ops.one_hot(kind, CLASSES, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))  # <hits>
        wanted = hits * ops.expand_dims(quality, 2)  # <wanted>
        entropy = ops.softplus(logits) - wanted * logits  # <entropy>
        focal = entropy * ops.pow(ops.abs(wanted - odds), 2.0)  # <focal>
        ordered, _ = ops.sort(ops.sum(focal, -1), -1)  # <ordered>
        hardest = ordered[:, -6:]  # <hardest>
        regression = ops.sum(ops.smooth_l1_loss(found, box, beta=1.0, reduction="none"), -1)  # <regression>
        near = ops.cast(ops.greater(quality, 0.05), ms.float32)  # <near>
        return ops.mean(hardest) + 0.5 * ops.mean(regression * near)  # <loss>


network = Loss()
optimizer = nn.SGD(network.trainable_params(), learning_rate=0.2)  # <optimizer>
compute = ops.value_and_grad(network, None, optimizer.parameters)


def step(x, box, kind):
    loss, gradients = compute(x, box, kind)  # <gradients>
    optimizer(gradients)  # <step>
    return loss


if MODE == "graph":
    step = ms.jit(step)
for number in range(2):
    part = slice(2 * number, 2 * number + 2)  # <part>
    loss = step(Tensor(features[part]), Tensor(boxes[part]), Tensor(classes[part]))  # <call>
    print(f"step {number} loss {float(loss.asnumpy())!r}")
