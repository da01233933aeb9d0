"""Faults of the diffusion block in MindSpore.

In graph mode, the file of a graph gives one line to all operators that are expanded from one definition (sums, products, casts), so the truth of these
names no line, but types.
"""

from benchmarks.diagnosis.programs import Edit
from benchmarks.diagnosis.suite import Fault

MODES = ("graph", "pynative")

FAULTS = (
    Fault("argument", "largest beta", "betas", "0.1,", "0.2,", "*: Sub|SubExt|Rsubs|CumProd; kept: *"),
    Fault(
        "formula",
        "noise not scaled by a root",
        "noisy",
        "ops.sqrt(1.0 - kept)",
        "(1.0 - kept)",
        "a noisy: Sqrt; *: Mul",
    ),
    Fault("argument", "sums instead of products", "kept", "cumprod", "cumsum", "kept: *; a kept: *"),
    Fault(
        "slice",
        "halves exchanged",
        "halves",
        "scale, shift =",
        "shift, scale =",
        "halves: *; *: Add|AddExt|Adds|AddScalar; modulate: Contiguous",
    ),
    Fault("argument", "base of the frequencies", "frequencies", "100.0", "1000.0", "frequencies: *; *: Mul|Muls"),
    Fault(
        "formula", "cosine twice", "embedding", "ops.sin(angles)", "ops.cos(angles)", "embedding: *; a embedding: Sin"
    ),
    Fault("argument", "epsilon of the group norm", "normalise", "1e-5", "1e-2", "*: Add|AddExt|Adds|AddScalar"),
    Fault("argument", "mean over one axis", "centred", "(1, 3)", "(1,)", "centred: *"),
    Fault(
        "formula", "scale without one", "modulate", "(1.0 + scale)", "scale", "a *: Add|AddExt|Adds|AddScalar; *: Mul"
    ),
    Fault("missing", "a residual", "residual", "h + ops", "ops", "a *: Add|AddExt; pad: *"),
    Fault(
        "slice",
        "neighbours one off",
        "neighbours",
        "padded[:, 2:]",
        "padded[:, 1:-1]",
        "neighbours: *; *: Muls|StridedSlice|Slice|SliceExt",
    ),
    Fault("formula", "only squares", "loss", "ops.abs(error) + ", "", "a loss: Abs; a *: Add|AddExt; loss: *"),
    Fault("data", "the same noise in each step", "call", "noises[part]", "noises[:3]", "*: Mul; *: Sub|SubExt"),
    Fault("optimizer", "decay of the average", "average", "0.95", "0.9", "average: * @*; *: Mul|Muls @*"),
    Fault(
        "stale",
        "average of the averages",
        "average",
        "* parameter",
        "* average",
        "average: * @*; *: Mul|Muls|Add|AddExt @*",
    ),
    Fault("optimizer", "learning rate", "optimizer", "0.02", "0.04", "*: SGD @*"),
)

CLEAN = (
    ("squares by a product", (Edit("loss", "ops.square(error)", "error * error"),)),
    (
        "SiLU written out",
        (
            Edit(
                "film",
                "ops.silu(ops.matmul(self.embedded(times), self.time))",
                "(lambda z: z * ops.sigmoid(z))(ops.matmul(self.embedded(times), self.time))",
            ),
        ),
    ),
)
