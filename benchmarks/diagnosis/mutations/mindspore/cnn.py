"""Faults of the convolutional classifier in MindSpore.

In graph mode, the file of a graph gives one line to all operators that are expanded from one definition (sums, products, casts), so the truth of these
names no line, but types.
"""

from benchmarks.diagnosis.programs import Edit
from benchmarks.diagnosis.suite import Fault

MODES = ("graph", "pynative")

FAULTS = (
    Fault("argument", "epsilon of a norm", "norm1-init", "1e-5", "1e-2", "norm1: BatchNorm"),
    Fault("in-place", "momentum of a norm", "norm2-init", "0.9", "0.8", "norm2: BatchNorm"),
    Fault("in-place", "evaluation instead of training", "train", "set_train()", "set_train(False)", "norm1: *"),
    Fault("parameter", "the other norm", "norm2", "self.norm2(r)", "self.norm1(r)", "norm2: BatchNorm"),
    Fault("missing", "a residual", "residual", "h + r", "r", "residual: ReLU; a *: Add|AddExt"),
    Fault("missing", "an activation", "relu1", "ops.relu(h)", "h", "a relu1: ReLU; second: Conv2D; *: Add|AddExt"),
    Fault("formula", "another activation", "relu1", "ops.relu", "ops.elu", "relu1: *; a relu1: ReLU"),
    Fault(
        "argument",
        "dilation of a convolution",
        "second-init",
        "CHANNELS, CHANNELS)",
        "CHANNELS, CHANNELS, dilation=2)",
        "second: Conv2D",
    ),
    Fault("argument", "average pooling", "pool-init", "MaxPool2d", "AvgPool2d", "pool: *; a pool: MaxPool"),
    Fault("formula", "largest instead of mean", "average", "ops.mean", "ops.amax", "average: *; a average: ReduceMean"),
    Fault("argument", "labels smoothed twice as much", "smooth", "0.02", "0.04", "smooth: OneHot"),
    Fault(
        "cast",
        "logits through float16",
        "head",
        "ops.matmul(pooled, self.head)",
        "ops.matmul(pooled, self.head).astype(ms.float16).astype(ms.float32)",
        "*: Cast",
    ),
    Fault("argument", "divisor of the loss", "loss", "/ 4", "/ 5", "*: Div|Divs"),
    Fault("optimizer", "momentum", "optimizer", "momentum=0.9", "momentum=0.8", "*: ApplyMomentum @*"),
    Fault("optimizer", "learning rate", "optimizer", "0.05", "0.06", "*: ApplyMomentum @*"),
    Fault(
        "data",
        "a pixel",
        "images",
        "astype(np.float32)",
        "astype(np.float32) + np.eye(8, dtype=np.float32) * 0.1",
        "stem: Conv2D",
    ),
    Fault("data", "labels of another batch", "call", "labels[part]", "labels[::-1][part]", "smooth: OneHot"),
)

CLEAN = (
    ("average by a sum", (Edit("average", "ops.mean(h, (2, 3))", "ops.sum(h, (2, 3)) / 16"),)),
    (
        "logarithm of a softmax",
        (Edit("log-softmax", "ops.log_softmax(self.model(x), -1)", "ops.log(ops.softmax(self.model(x), -1))"),),
    ),
)
