"""Faults of the transformer in JAX."""

from benchmarks.diagnosis.suite import Fault, Twin

MODES = ("jit", "grad", "plain")
FAULTS = (
    Fault(
        "formula",
        "scores not scaled",
        "scores",
        " / math.sqrt(WIDTH // HEADS)",
        "",
        "a scores: div|true_divide; masked: select_n|where",
        twin=Twin(
            "query * size**-0.5", "query", "a scores: div|true_divide|dot_general; scores: *; a masked: select_n|where"
        ),
    ),
    Fault(
        "argument",
        "diagonal of the mask",
        "mask",
        "bool))",
        "bool), 1)",
        "mask: *",
        twin=Twin(">= places", "> places", "a mask: *; a masked: *; masked: *", mark="masked"),
    ),
    Fault(
        "argument", "epsilon of the norms", "norm", "1e-5", "1e-3", "norm: add", twin=Twin("1e-5", "1e-3", "norm: *")
    ),
    Fault(
        "formula",
        "exact GELU",
        "gelu",
        "approximate=True",
        "approximate=False",
        "gelu: *; a gelu: *",
        twin=Twin(
            "jnp.tanh(0.7978845608 * (wide + 0.044715 * wide**3))",
            "jax.lax.erf(wide * 0.70710678)",
            "a gelu: *; gelu: *",
        ),
    ),
    Fault(
        "missing",
        "a residual",
        "residual2",
        "x + h",
        "h",
        "a residual2: add; residual2: dot_general|matmul",
        twin=Twin(" + values", "", "a residual2: add; residual2: *"),
    ),
    Fault(
        "cast",
        "softmax in bfloat16",
        "softmax",
        "softmax(scores, axis=-1)",
        "softmax(scores.astype(jnp.bfloat16), axis=-1).astype(jnp.float32)",
        "softmax: convert_element_type|*",
        twin=Twin("powers / ", "powers.astype(jnp.bfloat16).astype(jnp.float32) / ", "softmax: *; a softmax: *"),
    ),
    Fault(
        "argument",
        "another number of tokens",
        "loss",
        "/ 12",
        "/ 11",
        "loss: div|true_divide",
        twin=Twin("/ 12", "/ 11", "loss: *; a loss: *"),
    ),
    Fault(
        "argument",
        "clipped at a half",
        "clip",
        "1.0, 1.0",
        "1.0, 0.5",
        "clip: div|true_divide @*",
        twin=Twin("1.0, 1.0", "1.0, 0.5", "clip: * @*; a clip: * @*"),
    ),
    Fault(
        "optimizer",
        "decay ten times as large",
        "update",
        "0.01",
        "0.1",
        "update: mul|multiply @*",
        twin=Twin("0.001", "0.01", "update: * @*; a update: * @*"),
    ),
)
