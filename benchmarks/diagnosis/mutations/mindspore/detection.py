"""Faults of the detection head in MindSpore.

In graph mode, the file of a graph gives one line to all operators that are expanded from one definition (sums, products, casts), so the truth of these
names no line, but types.
"""

from benchmarks.diagnosis.programs import Edit
from benchmarks.diagnosis.suite import Fault

MODES = ("graph", "pynative")

FAULTS = (
    Fault(
        "argument",
        "size of the anchors",
        "anchors",
        "1.2",
        "1.3",
        "decode-centre,decode-size: *; *: Mul|StridedSlice|Slice|SliceExt",
    ),
    Fault("argument", "a bound of the sizes", "decode-size", "0.5)", "0.1)", "decode-size: *"),
    Fault(
        "formula",
        "corners at the whole size",
        "corners",
        "centre - size / 2",
        "centre - size",
        "a *: Div|Divs; *: Sub|SubExt; corners: *",
    ),
    Fault(
        "formula",
        "union counts the overlap twice",
        "iou",
        "second - inner +",
        "second +",
        "a *: Sub|SubExt; *: Add|AddExt|Adds|AddScalar",
    ),
    Fault("formula", "overlap of the wrong corners", "high", "ops.minimum", "ops.maximum", "high: *; a high: *"),
    Fault("argument", "kink of the smooth L1", "regression", "beta=1.0", "beta=0.5", "regression: *"),
    Fault("argument", "exponent of the focal loss", "focal", "2.0", "3.0", "focal: *"),
    Fault("argument", "slope of the leaky ReLU", "stem", "0.1", "0.01", "stem: *"),
    Fault(
        "backward",
        "the quality is not held fixed",
        "quality",
        "ops.stop_gradient(overlap(found, box))",
        "overlap(found, box)",
        "*: * @backward; a quality: *; quality: *",
    ),
    Fault(
        "slice",
        "the easiest instead of the hardest",
        "hardest",
        "[:, -6:]",
        "[:, :6]",
        "hardest: *; *: StridedSlice|Slice|SliceExt; loss: ReduceMean",
    ),
    Fault("argument", "weight of the regression", "loss", "0.5 *", "0.4 *", "*: Mul|Muls"),
    Fault("argument", "threshold of near boxes", "near", "0.05", "0.2", "near: *; *: Greater"),
    Fault(
        "parameter",
        "weights of the classes",
        "logits",
        "h, self.kind",
        "h, self.box[:, :3]",
        "logits: *; *: MatMul|MatMulExt",
    ),
    Fault("formula", "another activation", "odds", "ops.sigmoid", "ops.tanh", "odds: *; a odds: Sigmoid"),
    Fault("optimizer", "learning rate", "optimizer", "0.2", "0.1", "*: SGD @*"),
)

CLEAN = (
    ("squares by a product", (Edit("focal", "ops.pow(ops.abs(wanted - odds), 2.0)", "ops.square(wanted - odds)"),)),
    ("sigmoid by tanh", (Edit("odds", "ops.sigmoid(logits)", "0.5 + 0.5 * ops.tanh(0.5 * logits)"),)),
)
