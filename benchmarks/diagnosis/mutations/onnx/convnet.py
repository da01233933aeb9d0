"""Faults of the classifier in ONNX Runtime. In the mode "all" the runtime fuses convolutions with what follows them."""

from benchmarks.diagnosis.programs import Edit
from benchmarks.diagnosis.suite import Fault

MODES = ("disabled", "all")
_UNIT = "Conv|FusedConv|BatchNormalization"
CLEAN = (
    ("by a factor", (Edit("scaled", 'op("Div", "images", fixed("range", 255.0)', 'op("Mul", "images", fixed("range", 1 / 255)'),)),
    ("matrix and sum", (Edit("flat", 'op("Flatten", x,', 'op("Reshape", x, fixed("rows", [2, 8], np.int64),'),)),
)  # fmt: skip
FAULTS = (
    Fault("argument", "epsilon of the norm", "norm", "1e-5", "1e-2", f"*[stem]: {_UNIT}"),
    Fault(
        "argument",
        "dilation",
        "second",
        "pads=[2, 2, 2, 2], dilations=[2, 2]",
        "pads=[1, 1, 1, 1]",
        f"*[second]: {_UNIT}",
    ),
    Fault("argument", "slope", "leaky", "alpha=0.1", "alpha=0.01", "*[leaky]: LeakyRelu"),
    Fault(
        "argument",
        "padding counted",
        "average",
        "count_include_pad=0",
        "count_include_pad=1",
        "*[average]: AveragePool",
    ),
    Fault(
        "parameter",
        "mean and shift exchanged",
        "norm",
        "*facts",
        "facts[0], facts[2], facts[1], facts[3]",
        f"*[stem]: {_UNIT}",
    ),
    Fault(
        "missing",
        "centering",
        "centered",
        'op("Sub"',
        'x or op("Sub"',
        "*[stem]: Conv|FusedConv|ReorderInput; a *[centered]: Sub",
    ),
    Fault(
        "formula",
        "average for maximum",
        "pool",
        '"MaxPool"',
        '"AveragePool"',
        "*[pool]: AveragePool; a *[pool]: MaxPool",
    ),
    Fault(
        "missing",
        "residual lost",
        "residual",
        'op("Sub", x, h,',
        'op("Identity", h,',
        "*[residual]: Identity; a *[residual]: Sub; *[leaky]: LeakyRelu; a *[second]: FusedConv",
    ),
    Fault("data", "range of the images", "scaled", "255.0", "256.0", "*[scaled]: Div"),
    Fault("data", "one value", "images", "* 255", "* 255; images[0, 1, 3, 4] += 90", "*[scaled]: Div"),
    Fault(
        "cast",
        "head in half precision",
        "head",
        'op("Gemm", x, weight("head.weight", 8, 10), weight("head.bias", 10), name="head")',
        'op("Cast", op("Cast", op("Gemm", x, weight("head.weight", 8, 10), weight("head.bias", 10), name="head"), name="narrow", to=10), name="wide", to=1)',
        "*[narrow]: Cast; *[wide]: Cast",
    ),
    Fault(
        "parameter",
        "bias left out",
        "head",
        ', weight("head.bias", 10)',
        ', op("Mul", weight("head.bias", 10), fixed("none", 0.0), name="no_bias")',
        "*[no_bias]: Mul; *[head]: Gemm",
    ),
)
