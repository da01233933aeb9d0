"""Faults of the tagger in ONNX Runtime."""

from benchmarks.diagnosis.programs import Edit
from benchmarks.diagnosis.suite import Fault

MODES = ("disabled", "all")
CLEAN = (
    ("weights in another order", (Edit("mixed", 'op("Mul", x, shares,', 'op("Mul", shares, x,'),)),
    ("mean by sum", (Edit("squeezed", 'op("Squeeze", x, fixed("ways", [1], np.int64)', 'op("Reshape", x, fixed("ways", [TOKENS, BATCH, WIDTH], np.int64)'),)),
)  # fmt: skip
FAULTS = (
    Fault("missing", "embedding not scaled", "scaled", 'op("Mul"', 'x or op("Mul"', "*[lstm]: LSTM; a *[scaled]: Mul"),
    Fault(
        "argument", "reset after the product", "gru", "linear_before_reset=1", "linear_before_reset=0", "*[gru]: GRU"
    ),
    Fault("argument", "axis of the softmax", "shares", "axis=0", "axis=1", "*[shares]: Softmax"),
    Fault("argument", "epsilon of the norm", "*", "1e-5", "1e-2", "*[norm]: LayerNormalization"),
    Fault(
        "argument",
        "axes of the transpose",
        "by-time",
        "[0, 2, 1, 3]",
        "[0, 1, 2, 3]",
        "*[by_time]: Transpose; a *[by_time]: Transpose; *[joined]: Reshape",
    ),
    Fault("data", "length of a sequence", "feeds", "[7, 5]", "[7, 6]", "*[lstm]: LSTM"),
    Fault(
        "data",
        "one token",
        "ids",
        "(TOKENS, BATCH))",
        "(TOKENS, BATCH)); ids[2, 1] = (ids[2, 1] + 1) % VOCABULARY",
        "*[embedded]: Gather",
    ),
    Fault(
        "formula",
        "largest for sum",
        "pooled",
        '"ReduceSum"',
        '"ReduceMax"',
        "*[pooled]: ReduceMax; a *[pooled]: ReduceSum",
    ),
    Fault(
        "parameter",
        "weights unweighted",
        "pooled",
        '"ReduceSum", mixed',
        '"ReduceSum", x',
        "*[pooled]: ReduceSum; a *[mixed]: Mul",
    ),
    Fault(
        "cast",
        "states in half precision",
        "squeezed",
        'op("Squeeze", x, fixed("ways", [1], np.int64), name="squeezed")',
        'op("Cast", op("Cast", op("Squeeze", x, fixed("ways", [1], np.int64), name="squeezed"), name="narrow", to=10), name="wide", to=1)',
        "*[narrow]: Cast; *[wide]: Cast",
    ),
    Fault(
        "formula",
        "clipped instead of tanh",
        "result",
        'op("Tanh"',
        'op("Softsign"',
        "*[result]: Softsign; a *[result]: Tanh",
    ),
)
