"""Faults of the recurrent language model in JAX."""

from benchmarks.diagnosis.programs import Edit
from benchmarks.diagnosis.suite import Fault, Twin

MODES = ("jit", "grad", "plain")

FAULTS = (
    Fault(
        "formula",
        "gates the other way round",
        "mix",
        "update * hidden + (1.0 - update) * candidate",
        "(1.0 - update) * hidden + update * candidate",
        "mix: *",
        twin=Twin("proposal + keep * (state - proposal)", "state + keep * (proposal - state)", "mix: *; a mix: *"),
    ),
    Fault(
        "formula",
        "candidate without the reset gate",
        "candidate",
        "(reset * hidden)",
        "hidden",
        "a candidate: mul|multiply; candidate: dot_general",
        twin=Twin("(reset * state)", "state", "a candidate: mul|multiply; candidate: *"),
    ),
    Fault(
        "parameter",
        "weights of the gates for the state",
        "gates",
        'hidden @ parameters["hg"]',
        'hidden @ parameters["xg"]',
        "gates: dot_general",
        twin=Twin(
            'state @ weights["state"]', 'state @ weights["input"]', "total: *; a gates: dot_general", mark="total"
        ),
    ),
    Fault(
        "missing",
        "the bias of the gates",
        "gates",
        ' + parameters["bg"]',
        "",
        "a gates: *; gates: *",
        twin=Twin(' + weights["offset"][part]', "", "a gates: *; total: *", mark="total"),
    ),
    Fault(
        "formula",
        "embedding not scaled",
        "embed",
        " * 2.0",
        "",
        "a embed: mul|multiply; scan: *; candidate: dot_general; gates: dot_general; embed: *",
        twin=Twin(
            "2.0 * ",
            "",
            "a embed: mul|multiply; scan: *; candidate: *; total: *; embed: *; a candidate: dot_general; a gates: dot_general",
        ),
    ),
    Fault(
        "argument",
        "scale of the logits",
        "logits",
        "jnp.sqrt(8.0)",
        "jnp.sqrt(9.0)",
        "logits: *",
        twin=Twin("jnp.sqrt(8.0)", "jnp.sqrt(9.0)", "logits: *; a logits: *"),
    ),
    Fault(
        "formula",
        "no normalisation",
        "normalise",
        " - jax.scipy.special.logsumexp(logits, axis=-1, keepdims=True)",
        "",
        "a normalise: *; pick: *",
    ),
    Fault("slice", "targets not shifted", "shift", "window[:, 1:]", "window[:, :-1]", "pick: *; shift: *"),
    Fault(
        "argument",
        "a start that is not zero",
        "start",
        "jnp.zeros((ids.shape[0], WIDTH))",
        "jnp.full((ids.shape[0], WIDTH), 0.1)",
        "start: *; gates: *; scan: *",
        twin=Twin(
            "jnp.zeros((given.shape[0], N))",
            "jnp.full((given.shape[0], N), 0.1)",
            "start: *; total: *; scan: *; a start: *; a gates: *",
        ),
    ),
    Fault(
        "optimizer",
        "beta of the second moment",
        "second",
        "0.99 * v",
        "0.9 * v",
        "second: mul|multiply @*",
        twin=Twin("0.99 * moments", "0.9 * moments", "second: * @*; a second: * @*"),
    ),
    Fault(
        "optimizer",
        "epsilon of Adam",
        "update",
        "1e-6",
        "1e-3",
        "update: add @*",
        twin=Twin("1e-6", "1e-3", "update: * @*; a update: * @*"),
    ),
    Fault(
        "optimizer", "no bias correction", "rate", " / (1.0 - 0.9**count)", "", "a rate: * @*; rate: * @*; update: * @*"
    ),
    Fault(
        "stale",
        "the step is not counted",
        "count",
        'state["count"] + 1',
        "jnp.float32(1)",
        "a count: * @*; count: * @*; rate: * @*",
    ),
    Fault(
        "cast",
        "states through bfloat16",
        "states",
        "states.swapaxes(0, 1)",
        "states.swapaxes(0, 1).astype(jnp.bfloat16).astype(jnp.float32)",
        "states: convert_element_type",
    ),
    Fault(
        "order",
        "states in time order",
        "states",
        "states.swapaxes(0, 1)",
        "states[::-1].swapaxes(0, 1)",
        "states: *; logits: dot_general",
    ),
)

CLEAN = (
    ("sigmoid by tanh", (Edit("gates", "jax.nn.sigmoid(", "(lambda z: 0.5 + 0.5 * jnp.tanh(0.5 * z))("),)),
    (
        "mixed by a difference",
        (Edit("mix", "update * hidden + (1.0 - update) * candidate", "candidate + update * (hidden - candidate)"),),
    ),
)
