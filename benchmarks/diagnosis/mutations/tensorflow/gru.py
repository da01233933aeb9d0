"""Faults of the recurrent language model in TensorFlow."""

from benchmarks.diagnosis.programs import Edit
from benchmarks.diagnosis.suite import Fault

MODES = ("function", "eager", "session", "keras")

FAULTS = (
    Fault(
        "formula",
        "gates the other way round",
        "mix",
        "update * hidden + (1.0 - update) * candidate",
        "(1.0 - update) * hidden + update * candidate",
        "mix: *",
    ),
    Fault(
        "formula",
        "candidate without the reset gate",
        "candidate",
        "reset * hidden",
        "hidden",
        "a candidate: Mul; candidate: MatMul",
    ),
    Fault(
        "parameter",
        "weights of the gates for the state",
        "gates",
        "tf.matmul(hidden, state_gates)",
        "tf.matmul(hidden, of_gates)",
        "gates: MatMul|ReadVariableOp; a gates: ReadVariableOp",
    ),
    Fault("missing", "the bias of the gates", "gates", " + bias", "", "a gates: *; gates: *"),
    Fault("formula", "embedding not scaled", "embed", " * 2.0", "", "a embed: Mul; advance: StridedSlice; embed: *"),
    Fault("argument", "scale of the logits", "logits", "tf.sqrt(8.0)", "tf.sqrt(9.0)", "logits: *"),
    Fault(
        "formula",
        "no normalisation",
        "normalise",
        " - tf.reduce_logsumexp(logits, axis=-1, keepdims=True)",
        "",
        "a normalise: *; pick: *",
    ),
    Fault("slice", "targets not shifted", "shift", "window[:, 1:]", "window[:, :-1]", "pick: *"),
    Fault(
        "argument",
        "a start that is not zero",
        "start",
        "tf.zeros((2, WIDTH))",
        "tf.fill((2, WIDTH), 0.1)",
        "start: *; gates: MatMul; candidate: Mul; mix: Mul",
    ),
    Fault("optimizer", "beta of the second moment", "second", "0.99 * v", "0.9 * v", "second: Mul @*"),
    Fault("optimizer", "epsilon of Adam", "update", "1e-6", "1e-3", "update: AddV2 @*"),
    Fault(
        "optimizer", "no bias correction", "rate", " / (1.0 - 0.9**now)", "", "a rate: * @*; rate: * @*; update: * @*"
    ),
    Fault("stale", "the step is counted twice", "count", "assign_add(1.0)", "assign_add(2.0)", "count: * @*"),
    Fault(
        "cast",
        "candidates through bfloat16",
        "mix",
        "candidate",
        "tf.cast(tf.cast(candidate, tf.bfloat16), tf.float32)",
        "mix: Cast",
    ),
    Fault(
        "order",
        "states in reverse order",
        "logits",
        "tf.stack(states,",
        "tf.stack(states[::-1],",
        "logits: Pack|BatchMatMulV2",
    ),
)

CLEAN = (
    ("sigmoid by tanh", (Edit("gates", "tf.sigmoid(", "(lambda z: 0.5 + 0.5 * tf.tanh(0.5 * z))("),)),
    (
        "mixed by a difference",
        (Edit("mix", "update * hidden + (1.0 - update) * candidate", "candidate + update * (hidden - candidate)"),),
    ),
)
