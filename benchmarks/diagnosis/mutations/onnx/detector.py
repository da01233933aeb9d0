"""Faults of the detection head in ONNX Runtime."""

from benchmarks.diagnosis.programs import Edit
from benchmarks.diagnosis.suite import Fault

MODES = ("disabled", "all")
CLEAN = (
    ("sum in another order", (Edit("merged", "x, wide", "wide, x"),)),
    ("product in another order", (Edit("result", "best, areas", "areas, best"),)),
)
FAULTS = (
    Fault(
        "formula",
        "HardSigmoid",
        "activation",
        '"HardSwish"',
        '"Relu"',
        "*[activation]: Relu; a *[activation]: HardSwish; *[stem]: FusedConv|Conv; a *[stem]: Conv",
    ),
    Fault("argument", "corners aligned", "*", '"half_pixel"', '"align_corners"', "*[wide]: Resize|Upsample"),
    Fault("parameter", "slope", "slanted", "0.1 + 0.1 *", "0.2 + 0.1 *", "*[slanted]: PRelu"),
    Fault("argument", "reach", "boxes", "1.5", "1.25", "*[moves]: Mul"),
    Fault("argument", "bound", "inside", "float(SIZE)", "float(SIZE - 1)", "*[inside]: Clip"),
    Fault("argument", "overlap", "*", '"overlap", 0.4', '"overlap", 0.9', "*[kept]: NonMaxSuppression"),
    Fault(
        "formula",
        "softmax for sigmoid",
        "scores",
        'op("Sigmoid", classes, name="scores")',
        'op("Softmax", classes, name="scores", axis=1)',
        "*[scores]: Softmax; a *[scores]: Sigmoid",
    ),
    Fault(
        "slice",
        "anchors one off",
        "boxes",
        "anchors, op",
        'op("Add", anchors, fixed("off", 1.0), name="anchors_off"), op',
        "*[anchors_off]: Add; *[boxes]: Add",
    ),
    Fault("argument", "smallest boxes", "*", 'name="best",', 'name="best", largest=0,', "*[best]: TopK"),
    Fault(
        "missing",
        "deep features left out",
        "merged",
        'op("Add"',
        'x or op("Add"',
        "*[slanted]: PRelu; a *[merged]: Add",
    ),
    Fault(
        "data",
        "one pixel",
        "images",
        "* 2 - 1",
        "* 2 - 1; images[1, 2, 7, 7] = 3",
        "*[stem]: Conv|FusedConv|ReorderInput",
    ),
    Fault(
        "formula",
        "sum for product",
        "*",
        '"ReduceProd"',
        '"ReduceSum"',
        "*[areas]: ReduceSum; a *[areas]: ReduceProd",
    ),
)
