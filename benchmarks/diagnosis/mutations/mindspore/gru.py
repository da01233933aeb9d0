"""Faults of the recurrent language model in MindSpore.

In graph mode, the file of a graph gives one line to all operators that are expanded from one definition (sums, products, casts), so the truth of these
names no line, but types.
"""

from benchmarks.diagnosis.programs import Edit
from benchmarks.diagnosis.suite import Fault

MODES = ("graph", "pynative")

FAULTS = (
    Fault(
        "formula",
        "gates the other way round",
        "mix",
        "update * hidden + (1.0 - update) * candidate",
        "(1.0 - update) * hidden + update * candidate",
        "*: Mul|Sub|SubExt|Rsubs; a *: Mul",
    ),
    Fault(
        "formula",
        "candidate without the reset gate",
        "kept",
        "reset * hidden",
        "hidden",
        "a *: Mul; candidate: MatMul|MatMulExt",
    ),
    Fault(
        "parameter", "weights of the gates", "given", "hidden, self.hg", "hidden, self.xg", "given: MatMul|MatMulExt"
    ),
    Fault("missing", "the bias of the gates", "gates", " + self.bg", "", "a *: Add|AddExt; gates: Sigmoid"),
    Fault(
        "formula",
        "another function of the gates",
        "gates",
        "ops.sigmoid",
        "ops.hardswish",
        "gates: *; a gates: Sigmoid",
    ),
    Fault(
        "formula",
        "another function of the candidate",
        "candidate",
        "ops.tanh",
        "ops.softsign",
        "candidate: *; a candidate: Tanh",
    ),
    Fault(
        "slice",
        "gates in another order",
        "split",
        "reset, update =",
        "update, reset =",
        "split: *; *: Mul|Sub|SubExt|Rsubs|Contiguous",
    ),
    Fault(
        "slice",
        "tokens in reverse",
        "advance",
        "embedded[:, place]",
        "embedded[:, TOKENS - 1 - place]",
        "advance: *; given: Add|AddExt; given,candidate: MatMul|MatMulExt|Contiguous",
    ),
    Fault(
        "stale",
        "the first state is read",
        "stack",
        "ops.stack(states, 1)",
        "ops.stack([states[0], *states[1:-1], states[0]], 1)",
        "stack: *",
    ),
    Fault(
        "missing",
        "embedding not scaled",
        "widen",
        "embedded * 2.0",
        "embedded",
        "a *: Mul|Muls; advance: *; given: MatMul|MatMulExt",
    ),
    Fault("argument", "scale of the logits", "scale", "math.sqrt(WIDTH)", "math.sqrt(WIDTH + 1)", "*: Div|Divs"),
    Fault(
        "argument",
        "a start that is not zero",
        "start",
        "ops.zeros((BATCH, WIDTH), ms.float32)",
        "ops.full((BATCH, WIDTH), 0.1, dtype=ms.float32)",
        "start: *; given: MatMul|MatMulExt",
    ),
    Fault(
        "missing",
        "no normalisation",
        "log-softmax",
        "ops.log_softmax(self.model(ids), -1)",
        "self.model(ids)",
        "a log-softmax: LogSoftmax; pick: *",
    ),
    Fault("data", "targets not shifted", "call", "window[:, 1:]", "window[:, :-1]", "pick: *"),
    Fault(
        "optimizer", "beta of the second moment", "optimizer", "beta2=0.99", "beta2=0.9", "*: Adam @*; *: Mul|Sub @*"
    ),
    Fault("optimizer", "epsilon of Adam", "optimizer", "eps=1e-6", "eps=1e-3", "*: Adam @*"),
    Fault(
        "cast",
        "states through bfloat16",
        "stack",
        "ops.stack(states, 1)",
        "ops.stack(states, 1).astype(ms.bfloat16).astype(ms.float32)",
        "*: Cast",
    ),
)

CLEAN = (
    (
        "mixed by a difference",
        (Edit("mix", "update * hidden + (1.0 - update) * candidate", "candidate + update * (hidden - candidate)"),),
    ),
    ("scaled by a product", (Edit("scale", "logits / math.sqrt(WIDTH)", "logits * (1.0 / math.sqrt(WIDTH))"),)),
)
