"""Faults of the convolutional classifier in TensorFlow."""

from benchmarks.diagnosis.programs import Edit
from benchmarks.diagnosis.suite import Fault

MODES = ("function", "eager", "session", "keras")

FAULTS = (
    Fault("argument", "epsilon of the batch norms", "normalise", "1e-5", "1e-2", "normalise: AddV2"),
    Fault("slice", "statistics of half of the images", "moments", "(x, [", "(x[:2], [", "moments: *"),
    Fault("in-place", "running mean twice as fast", "running-mean", "0.1 *", "0.2 *", "running-mean: * @*"),
    Fault(
        "parameter",
        "the scale of the other norm",
        "norm2",
        "norms[1]",
        "{**norms[1], 'scale': norms[0]['bias']}",
        "affine: *",
    ),
    Fault("missing", "a residual", "residual", "h + r", "r", "a residual: AddV2; residual: *"),
    Fault("missing", "an activation", "relu1", "tf.nn.relu(h)", "h", "a relu1: *; second: Conv2D; residual: AddV2"),
    Fault("slice", "the second kernel upside down", "second", "second,", "second[::-1],", "second: *"),
    Fault("argument", "pooling by averages", "pool", "max_pool2d", "avg_pool2d", "pool: *; a pool: *"),
    Fault("formula", "labels smoothed twice as much", "smooth", "0.1 /", "0.2 /", "smooth: AddV2"),
    Fault(
        "cast",
        "logits through bfloat16",
        "head",
        "tf.matmul(pooled, head) + offset",
        "tf.cast(tf.cast(tf.matmul(pooled, head) + offset, tf.bfloat16), tf.float32)",
        "head: Cast",
    ),
    Fault("optimizer", "momentum", "momentum", "0.9 *", "0.8 *", "momentum: Mul @*"),
    Fault("optimizer", "learning rate", "update", "0.05", "0.06", "update: Mul @*"),
    Fault(
        "data",
        "one pixel",
        "images",
        '.astype("float32")',
        '.astype("float32") + (np.arange(8 * 8 * 8 * 3) == 77).reshape(8, 8, 8, 3).astype("float32")',
        "stem: Conv2D",
    ),
    Fault(
        "data",
        "labels of another batch",
        "labels",
        ', 8).astype("int32")',
        ', 8).astype("int32")[::-1]',
        "smooth: OneHot; losses: *",
    ),
)

CLEAN = (
    ("pooled by a sum", (Edit("average", "tf.reduce_mean(h, axis=[1, 2])", "tf.reduce_sum(h, axis=[1, 2]) / 16.0"),)),
    ("logits by einsum", (Edit("head", "tf.matmul(pooled, head)", 'tf.einsum("bc,ck->bk", pooled, head)'),)),
)
