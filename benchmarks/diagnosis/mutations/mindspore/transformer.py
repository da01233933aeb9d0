"""Faults of the transformer in MindSpore.

In graph mode, the file of a graph gives one line to all operators that are expanded from one definition (products, sums, casts), so the truth of these
names no line.
"""

from benchmarks.diagnosis.suite import Fault

MODES = ("graph", "pynative")

FAULTS = (
    Fault(
        "formula",
        "scores not scaled",
        "scale",
        " / math.sqrt(WIDTH // HEADS)",
        "",
        "mask: MaskedFill; a scale: Div|Divs",
    ),
    Fault("argument", "diagonal of the mask", "mask-init", "TOKENS)), 1)", "TOKENS)), 2)", "mask: MaskedFill"),
    Fault("argument", "epsilon of a norm", "norm1-init", "1e-5", "1e-3", "residual1: LayerNorm"),
    Fault("formula", "exact GELU", "gelu", "tanh", "none", "gelu: *"),
    Fault("missing", "residual", "residual2", "x + ops", "ops", "residual1,head: LayerNorm; a *: Add|AddExt"),
    Fault(
        "cast",
        "float16 softmax",
        "softmax",
        "softmax(scores, -1)",
        "softmax(scores.astype(ms.float16), -1).astype(ms.float32)",
        "*: Cast",
    ),
    Fault("argument", "divisor of the loss", "loss", "12", "11", "loss: Div|Divs @*"),
    Fault("optimizer", "bound of the gradients", "clip", "1.0", "0.5", "clip: Mul|GreaterEqual|Select @*"),
    Fault("optimizer", "learning rate", "optimizer", "0.1,", "0.05,", "*: SGD @*"),
    Fault("optimizer", "decay", "optimizer", "0.01", "0.02", "*: Mul|SGD @*"),
)
