"""Faults of the mixture of experts in TensorFlow."""

from benchmarks.diagnosis.programs import Edit
from benchmarks.diagnosis.suite import Fault

MODES = ("function", "eager", "session", "keras")

FAULTS = (
    Fault("argument", "one expert for each row", "top", "(odds, 2)", "(odds, 1)", "top: TopKV2"),
    Fault(
        "missing",
        "shares not renormalised",
        "renormalise",
        "best / tf.reduce_sum(best, axis=-1, keepdims=True)",
        "best",
        "a renormalise: *; share: *",
    ),
    Fault("argument", "axis of the softmax", "odds", "axis=-1", "axis=0", "odds: *; a odds: *"),
    Fault("formula", "GELU for SiLU", "gate", "tf.nn.silu", "tf.nn.gelu", "gate: *; a gate: *"),
    Fault(
        "parameter",
        "gate and up are the same",
        "expert",
        "tf.matmul(x, up)",
        "tf.matmul(x, gate)",
        "expert: BatchMatMulV2|ReadVariableOp; a expert: ReadVariableOp",
    ),
    Fault("missing", "a residual", "residual", "h + mixed", "mixed", "a residual: AddV2; residual: MatMul"),
    Fault(
        "formula",
        "balance of the sums",
        "balance",
        "tf.reduce_mean(odds, axis=0)",
        "tf.reduce_sum(odds, axis=0)",
        "balance: *; a balance: *",
    ),
    Fault("argument", "weight of the balance", "loss", "0.01", "0.02", "loss: Mul"),
    Fault("formula", "error cubed", "loss", "error**2.0", "tf.abs(error)**3.0", "loss: *"),
    Fault("argument", "epsilon of the norm", "norm", "1e-6", "1e-2", "norm: AddV2"),
    Fault("optimizer", "gradients bounded lower", "bound", "-0.2, 0.2", "-0.2, 0.1", "bound: * @*"),
    Fault("optimizer", "learning rate", "update", "0.3", "0.03", "update: Mul @*"),
    Fault(
        "cast",
        "scores in bfloat16",
        "router",
        "tf.matmul(x, router)",
        "tf.cast(tf.matmul(tf.cast(x, tf.bfloat16), tf.cast(router, tf.bfloat16)), tf.float32)",
        "router: *",
    ),
    Fault("slice", "load of the second choice", "load", "chosen[:, 0]", "chosen[:, 1]", "load: StridedSlice|OneHot"),
)

CLEAN = (
    (
        "mixed by a product",
        (
            Edit(
                "mixed",
                'tf.einsum("ne,end->nd", share, experts(x))',
                "tf.reduce_sum(tf.transpose(share)[..., None] * experts(x), axis=0)",
            ),
        ),
    ),
    ("squares by a product", (Edit("loss", "error**2.0", "error * error"),)),
)
