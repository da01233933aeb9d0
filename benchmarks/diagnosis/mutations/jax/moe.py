"""Faults of the mixture of experts in JAX."""

from benchmarks.diagnosis.programs import Edit
from benchmarks.diagnosis.suite import Fault

MODES = ("jit", "grad", "plain")

FAULTS = (
    Fault("argument", "one expert for each row", "top", "(odds, 2)", "(odds, 1)", "top: top_k"),
    Fault(
        "missing",
        "shares not renormalised",
        "renormalise",
        "best / jnp.sum(best, axis=-1, keepdims=True)",
        "best",
        "a renormalise: *; share: *",
    ),
    Fault("argument", "axis of the softmax", "odds", "axis=-1", "axis=0", "odds: *"),
    Fault("formula", "GELU for SiLU", "expert", "jax.nn.silu", "jax.nn.gelu", "expert: *; a expert: *"),
    Fault(
        "parameter",
        "gate and up are the same",
        "experts",
        'parameters["gate"]',
        'parameters["up"]',
        "expert: dot_general; experts: *",
    ),
    Fault("missing", "a residual", "residual", "h + mixed", "mixed", "a residual: add; residual: *"),
    Fault(
        "formula",
        "balance of the sums",
        "balance",
        "jnp.mean(odds, axis=0)",
        "jnp.sum(odds, axis=0)",
        "balance: *; a balance: *",
    ),
    Fault("argument", "weight of the balance", "loss", "0.01", "0.02", "loss: *"),
    Fault("formula", "error cubed", "loss", "error**2", "error**3", "loss: *"),
    Fault("argument", "epsilon of the norm", "norm", "1e-6", "1e-2", "norm: add"),
    Fault("optimizer", "gradients bounded at a half", "bound", "-0.2, 0.2", "-0.2, 0.1", "bound: * @*"),
    Fault("optimizer", "learning rate", "update", "0.3", "0.03", "update: mul|multiply @*"),
    Fault(
        "cast",
        "scores in bfloat16",
        "router",
        'x @ parameters["router"]',
        '(x.astype(jnp.bfloat16) @ parameters["router"].astype(jnp.bfloat16)).astype(jnp.float32)',
        "router: *",
    ),
    Fault("slice", "load of the second choice", "load", "chosen[:, 0]", "chosen[:, 1]", "load: *"),
)

CLEAN = (
    (
        "mixed by a product",
        (Edit("mixed", 'jnp.einsum("ne,end->nd", share, each)', "jnp.sum(share.T[..., None] * each, axis=0)"),),
    ),
    ("squares by a product", (Edit("loss", "error**2", "error * error"),)),
)
