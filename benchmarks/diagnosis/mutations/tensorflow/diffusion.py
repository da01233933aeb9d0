"""Faults of the diffusion block in TensorFlow."""

from benchmarks.diagnosis.programs import Edit
from benchmarks.diagnosis.suite import Fault

MODES = ("function", "eager", "session", "keras")

FAULTS = (
    Fault("argument", "largest beta", "betas", "0.1,", "0.2,", "betas: *; kept: *"),
    Fault(
        "formula",
        "noise not scaled by a root",
        "noisy",
        "tf.sqrt(1.0 - kept)",
        "(1.0 - kept)",
        "noisy: *; a noisy: Sqrt",
    ),
    Fault(
        "slice",
        "halves exchanged",
        "halves",
        "film[:, None, :WIDTH], film[:, None, WIDTH:]",
        "film[:, None, WIDTH:], film[:, None, :WIDTH]",
        "halves: *; modulate: *",
    ),
    Fault("argument", "base of the frequencies", "frequencies", "100.0", "1000.0", "frequencies: *; angles: Mul"),
    Fault("formula", "cosine twice", "embedding", "tf.sin(angles)", "tf.cos(angles)", "embedding: *; a embedding: Sin"),
    Fault("argument", "epsilon of the group norm", "normalise", "1e-5", "1e-2", "normalise: AddV2"),
    Fault("argument", "mean over one axis", "mean", "(1, 3)", "(1,)", "mean: *; normalise: *"),
    Fault("formula", "scale without one", "modulate", "(1.0 + scale)", "scale", "a modulate: AddV2; modulate: *"),
    Fault("missing", "a residual", "residual", "h + tf", "tf", "a residual: AddV2; pad: *; neighbours: *"),
    Fault("slice", "neighbours one off", "neighbours", "padded[:, 2:]", "padded[:, 1:-1]", "neighbours: *"),
    Fault("formula", "only squares", "loss", "tf.abs(error) + ", "", "a loss: *; loss: *"),
    Fault(
        "order",
        "samples in another order",
        "part",
        "slice(3 * number, 3 * number + 3)",
        "[3 * number + 1, 3 * number, 3 * number + 2]",
        "noisy: *; error: *",
    ),
    Fault("optimizer", "decay of the average", "average", "0.95", "0.9", "average: Mul @*"),
    Fault("optimizer", "learning rate", "update", "0.02", "0.03", "update: Mul @*"),
    Fault("data", "a time", "times", "3 + number", "4 + number", "angles: *; kept: *"),
)

CLEAN = (
    (
        "softplus by its formula",
        (Edit("residual", "tf.nn.softplus(product(h, middle))", "tf.math.log1p(tf.exp(product(h, middle)))"),),
    ),
    ("squares by a product", (Edit("loss", "error**2.0", "error * error"),)),
)
