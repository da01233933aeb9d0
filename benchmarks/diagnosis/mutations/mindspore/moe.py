"""Faults of the mixture of experts in MindSpore.

In graph mode, the file of a graph gives one line to all operators that are expanded from one definition (sums, products, casts), so the truth of these
names no line, but types.
"""

from benchmarks.diagnosis.programs import Edit
from benchmarks.diagnosis.suite import Fault

MODES = ("graph", "pynative")

FAULTS = (
    Fault("argument", "axis of the softmax", "odds", "(scores, -1)", "(scores, 0)", "odds: Softmax"),
    Fault(
        "missing",
        "shares not renormalised",
        "renormalise",
        "best / ops.sum(best, -1, True)",
        "best",
        "a *: Div; a renormalise: *; share: *; *: Mul",
    ),
    Fault("formula", "GELU for SiLU", "gated", "ops.silu", "ops.gelu", "gated: *; a gated: *"),
    Fault(
        "parameter",
        "gate and up are the same",
        "hidden",
        "self.up",
        "self.gate",
        "hidden: *; *: BatchMatMul|BatchMatMulExt",
    ),
    Fault("missing", "a residual", "residual", "h + mixed", "mixed", "a *: Add|AddExt; residual: MatMul|MatMulExt"),
    Fault(
        "formula",
        "balance of the sums",
        "balance",
        "ops.mean(odds, 0)",
        "ops.sum(odds, 0)",
        "balance: *; a balance: *; a *: ReduceMean",
    ),
    Fault("argument", "weight of the balance", "loss", "0.01", "0.02", "*: Mul|Muls"),
    Fault("formula", "absolute error", "loss", "ops.square", "ops.abs", "loss: *; a loss: Square"),
    Fault("argument", "epsilon of the norm", "norm", "1e-6", "1e-2", "*: Add|AddExt|Adds|AddScalar"),
    Fault(
        "missing",
        "the scale of the norm",
        "norm",
        " * self.scale",
        "",
        "a *: Mul @*; first,router: *; *: MatMul|MatMulExt",
    ),
    Fault("slice", "load of the second choice", "load", "hits[:, 0]", "hits[:, 1]", "load: *"),
    Fault("argument", "other choices", "top", "ops.topk(odds, 2)", "ops.topk(odds, 2, largest=False)", "top: *"),
    Fault(
        "optimizer",
        "lower bound of the gradients",
        "bound",
        "-0.05,",
        "-0.02,",
        "bound: * @*; *: Maximum|ClampScalar|Select|LessEqual|Less @*",
    ),
    Fault("optimizer", "learning rate", "optimizer", "0.3", "0.03", "*: SGD @*"),
    Fault(
        "cast",
        "scores in float16",
        "router",
        "ops.matmul(x, self.router)",
        "ops.matmul(x, self.router).astype(ms.float16).astype(ms.float32)",
        "*: Cast",
    ),
)

CLEAN = (
    ("squares by a product", (Edit("loss", "ops.square(error)", "error * error"),)),
    ("power by a norm", (Edit("power", "ops.mean(ops.square(x), -1, True)", "ops.sum(x * x, -1, True) / WIDTH"),)),
)
