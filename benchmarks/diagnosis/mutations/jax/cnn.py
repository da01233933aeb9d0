"""Faults of the convolutional classifier in JAX."""

from benchmarks.diagnosis.programs import Edit
from benchmarks.diagnosis.suite import Fault

MODES = ("jit", "grad", "plain")

FAULTS = (
    Fault("argument", "epsilon of the batch norms", "normalise", "1e-5", "1e-2", "normalise: add"),
    Fault(
        "formula",
        "a sum instead of a mean",
        "mean",
        "jnp.mean",
        "jnp.sum",
        "mean: *; a mean: *; normalise: sub|subtract",
    ),
    Fault("slice", "statistics of each image row", "variance", "(0, 1, 2)", "(0, 1)", "variance: *; normalise: *"),
    Fault(
        "in-place", "running mean ten times as fast", "running-mean", "0.1 *", "0.2 *", "running-mean: mul|multiply @*"
    ),
    Fault(
        "parameter", "the scale of the other norm", "norm2", 'parameters["norm2"]', 'parameters["norm1"]', "affine: *"
    ),
    Fault("missing", "a residual", "residual", "h + r", "r", "a residual: add; residual: *"),
    Fault(
        "missing",
        "an activation",
        "relu1",
        "jax.nn.relu(h)",
        "h",
        "a relu1: *; second: conv_general_dilated; residual: add",
    ),
    Fault(
        "argument",
        "stride of the second convolution",
        "second",
        'parameters["conv"])',
        'parameters["conv"][::-1])',
        "second: rev|*; conv: *",
    ),
    Fault(
        "formula",
        "an average over one axis too few",
        "average",
        "jnp.mean(h, axis=(1, 2))",
        "jnp.mean(h, axis=1)[:, 0]",
        "average: *; a average: *; head: dot_general",
    ),
    Fault("formula", "labels smoothed twice as much", "smooth", "0.1 /", "0.2 /", "smooth: *"),
    Fault(
        "cast",
        "logits through bfloat16",
        "head",
        'pooled @ parameters["head"]',
        '(pooled @ parameters["head"]).astype(jnp.bfloat16).astype(jnp.float32)',
        "head: convert_element_type",
    ),
    Fault("optimizer", "momentum", "momentum", "0.9 * m", "0.8 * m", "momentum: mul|multiply @*"),
    Fault("optimizer", "learning rate", "update", "0.05", "0.06", "update: mul|multiply @*"),
    Fault(
        "data",
        "one pixel",
        "call",
        "jnp.asarray(images[part])",
        "jnp.asarray(images[part]).at[1, 2, 3, 0].add(1.0)",
        "call: *; conv: conv_general_dilated",
    ),
    Fault(
        "data",
        "labels of another batch",
        "part",
        "slice(4 * step, 4 * step + 4)",
        "slice(4 - 4 * step, 8 - 4 * step)",
        "call: *; conv: conv_general_dilated; smooth: *",
    ),
)

CLEAN = (
    (
        "variance by its formula",
        (Edit("variance", "jnp.var(x, axis=(0, 1, 2))", "jnp.mean((x - mean) ** 2, axis=(0, 1, 2))"),),
    ),
    (
        "logits by einsum",
        (Edit("head", 'pooled @ parameters["head"]', 'jnp.einsum("bc,ck->bk", pooled, parameters["head"])'),),
    ),
)
