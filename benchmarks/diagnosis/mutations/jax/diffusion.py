"""Faults of the diffusion block in JAX."""

from benchmarks.diagnosis.programs import Edit
from benchmarks.diagnosis.suite import Fault

MODES = ("jit", "grad", "plain")

FAULTS = (
    Fault("argument", "largest beta", "betas", "0.1,", "0.2,", "betas: *"),
    Fault(
        "formula",
        "noise not scaled by a root",
        "noisy",
        "jnp.sqrt(1.0 - kept)",
        "(1.0 - kept)",
        "noisy: *; a noisy: sqrt",
    ),
    Fault(
        "slice",
        "halves exchanged",
        "halves",
        "film[:, None, :WIDTH], film[:, None, WIDTH:]",
        "film[:, None, WIDTH:], film[:, None, :WIDTH]",
        "halves: *; modulate: *",
    ),
    Fault("argument", "base of the frequencies", "frequencies", "100.0", "1000.0", "frequencies: *"),
    Fault(
        "formula", "cosine twice", "embedding", "jnp.sin(angles)", "jnp.cos(angles)", "embedding: *; a embedding: sin"
    ),
    Fault("argument", "epsilon of the group norm", "normalise", "1e-5", "1e-2", "normalise: add"),
    Fault("argument", "mean over one axis", "mean", "(1, 3)", "(1,)", "mean: *; normalise: *"),
    Fault("formula", "scale without one", "modulate", "(1.0 + scale)", "scale", "a modulate: add; modulate: *"),
    Fault("missing", "a residual", "residual", "h + jax", "jax", "a residual: add; pad: *; neighbours: *"),
    Fault("slice", "neighbours one off", "neighbours", "padded[:, 2:]", "padded[:, 1:-1]", "neighbours: *"),
    Fault("formula", "only squares", "loss", "jnp.abs(error) + ", "", "a loss: *; loss: *"),
    Fault(
        "stale",
        "the same key in each step",
        "key",
        "(jax.random.key(7), step)",
        "(jax.random.key(7), 0)",
        "key: *; noise: *; noisy: mul|multiply; error: sub|subtract",
    ),
    Fault("optimizer", "decay of the average", "average", "0.95", "0.9", "average: mul|multiply @*"),
    Fault("optimizer", "learning rate", "update", "0.1", "0.2", "update: mul|multiply @*"),
    Fault("data", "a time", "times", "3 + step", "4 + step", "times: *; angles: *; kept: *"),
)

CLEAN = (
    (
        "softplus by logaddexp",
        (Edit("residual", 'jax.nn.softplus(h @ parameters["mid"])', 'jnp.logaddexp(h @ parameters["mid"], 0.0)'),),
    ),
    ("squares by a product", (Edit("loss", "error**2", "error * error"),)),
)
