"""Faults of the transformer in JAX."""

from benchmarks.diagnosis.suite import Fault

MODES = ("jit", "grad", "plain")
FAULTS = (
    Fault(
        "formula",
        "scores not scaled",
        "scores",
        " / math.sqrt(WIDTH // HEADS)",
        "",
        "a scores: div|true_divide; masked: select_n|where",
    ),
    Fault("argument", "diagonal of the mask", "mask", "bool))", "bool), 1)", "mask: *"),
    Fault("argument", "epsilon of the norms", "norm", "1e-5", "1e-3", "norm: add"),
    Fault("formula", "exact GELU", "gelu", "approximate=True", "approximate=False", "gelu: *; a gelu: *"),
    Fault("missing", "a residual", "residual2", "x + h", "h", "a residual2: add; residual2: dot_general|matmul"),
    Fault(
        "cast",
        "softmax in bfloat16",
        "softmax",
        "softmax(scores, axis=-1)",
        "softmax(scores.astype(jnp.bfloat16), axis=-1).astype(jnp.float32)",
        "softmax: convert_element_type|*",
    ),
    Fault("argument", "another number of tokens", "loss", "/ 12", "/ 11", "loss: div|true_divide"),
    Fault("argument", "clipped at a half", "clip", "1.0, 1.0", "1.0, 0.5", "clip: div|true_divide @*"),
    Fault("optimizer", "decay ten times as large", "update", "0.01", "0.1", "update: mul|multiply @*"),
)
