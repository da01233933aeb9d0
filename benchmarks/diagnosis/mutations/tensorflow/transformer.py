"""Faults of the language model with two blocks."""

from benchmarks.diagnosis.programs import Edit
from benchmarks.diagnosis.suite import Fault

MODES = ("function", "eager", "session", "keras")

CLEAN = (
    ("product with a constant", (Edit("scores", "/ math.sqrt(WIDTH // HEADS)", "* (WIDTH // HEADS) ** -0.5"),)),
    ("variance by squares", (Edit("variance", "tf.math.squared_difference(x, mean)", "tf.square(x - mean)"),)),
)

FAULTS = (
    Fault(
        "formula",
        "scores not scaled",
        "scores",
        " / math.sqrt(WIDTH // HEADS)",
        "",
        "masked: SelectV2; a scores: RealDiv",
    ),
    Fault("argument", "mask off by one", "mask", "-1, 0)", "-1, 1)", "mask: MatrixBandPart; masked: SelectV2"),
    Fault("argument", "epsilon", "norm", "1e-5", "1e-3", "norm: AddV2"),
    Fault("formula", "exact GELU", "gelu", "approximate=True", "approximate=False", "gelu: *; a gelu: *"),
    Fault(
        "missing",
        "residual",
        "residual2",
        "return x + tf.matmul",
        "return tf.matmul",
        "a residual2: AddV2; mean: Mean; variance: *; norm: *; head: BatchMatMulV2",
    ),
    Fault(
        "cast",
        "softmax in bfloat16",
        "softmax",
        "tf.nn.softmax(scores)",
        "tf.cast(tf.nn.softmax(tf.cast(scores, tf.bfloat16)), tf.float32)",
        "softmax: Cast|Softmax",
    ),
    Fault("formula", "divisor of the loss", "loss", "12.0", "11.0", "loss: RealDiv"),
    Fault("optimizer", "bound of the norm", "clip", "1.0)", "0.5)", "clip: * @*"),
    Fault("optimizer", "decay", "update", "0.01 * each", "0.1 * each", "update: Mul @*"),
    Fault("optimizer", "learning rate", "update", "0.1 * (", "0.2 * (", "update: Mul @*"),
    Fault(
        "parameter",
        "positions for tokens",
        "embedding",
        "+ positions",
        "+ tokens[:TOKENS]",
        "embedding: *; a embedding: *",
    ),
    Fault("slice", "shift of the targets", "shift", "window[:, 1:]", "window[:, :-1]", "losses: *"),
    Fault(
        "data",
        "one token",
        "corpus",
        ", 200)",
        ", 200) + (np.arange(200) == 9)",
        "embedding: ResourceGather; losses: *",
    ),
    Fault(
        "order",
        "norm of the sum",
        "residual1",
        "norm(x,",
        "x + 0 * norm(x,",
        "residual1: *; a norm: *; attention-out: *; qkv: BatchMatMulV2; mean: *",
    ),
    Fault(
        "backward",
        "gradient of the softmax stopped",
        "values",
        "tf.matmul(probabilities, v)",
        "tf.matmul(tf.stop_gradient(probabilities), v)",
        "softmax: * @*; a softmax: * @*; values: * @*; a values: * @*",
    ),
)
