"""Faults of the mixture of experts in ONNX Runtime. In the mode "all" the runtime makes QuickGelu of a product with a sigmoid."""

from benchmarks.diagnosis.programs import Edit
from benchmarks.diagnosis.suite import Fault

MODES = ("disabled", "all")
CLEAN = (
    ("square as a power", (Edit("square", 'op("Mul", "x", "x",', 'op("Pow", "x", fixed("two_", 2.0),'),)),
    ("sum in another order", (Edit("residual", '"x", result', 'result, "x"'),)),
)
FAULTS = (
    Fault(
        "argument",
        "epsilon",
        "root",
        "1e-6",
        "1e-2",
        "*[shifted]: Add; *[gained]: Mul; *: SimplifiedLayerNormalization",
    ),
    Fault("argument", "one expert", "*", "largest=1", "largest=0", "*[best]: TopK"),
    Fault(
        "missing",
        "weights not normed",
        "weights",
        'op("Div"',
        'best or op("Div"',
        "*[gates]: ScatterElements; a *[weights]: Div",
    ),
    Fault(
        "formula",
        "GELU for SiLU",
        "silu",
        'op("Mul", up, sigmoid,',
        'op("Gelu", up,',
        "*[silu]: Gelu; a *[silu]: Mul|QuickGelu; a *[sigmoid]: Sigmoid; *[gated]: Mul; a *: QuickGelu",
    ),
    Fault(
        "parameter",
        "side for gate",
        "gated",
        "h, side",
        "h, up",
        "*[gated]: Mul",
    ),
    Fault(
        "missing",
        "gate left out",
        "weighted",
        'op("Mul"',
        'h if expert == 1 else op("Mul"',
        "*[sum]: Add; a *[expert1/weighted]: Mul",
    ),
    Fault(
        "parameter",
        "wrong gate",
        "parts",
        "num_outputs=EXPERTS)",
        "num_outputs=EXPERTS)[::-1]",
        "*[weighted]: Mul; *[parts]: Split",
    ),
    Fault(
        "missing",
        "residual lost",
        "residual",
        'op("Add", "x", result,',
        'op("Identity", result,',
        "*[residual]: Identity; a *[residual]: Add; *[expert3/sum]: Add",
    ),
    Fault("argument", "axis of the softmax", "shares", "axis=-1", "axis=0", "*[shares]: Softmax"),
    Fault(
        "cast",
        "router in half precision",
        "logits",
        'op("MatMul", x, weight("router", WIDTH, EXPERTS, scale=1.0), name="router/logits")',
        'op("Cast", op("Cast", op("MatMul", x, weight("router", WIDTH, EXPERTS, scale=1.0), name="router/logits"), name="narrow", to=10), name="wide", to=1)',
        "*[narrow]: Cast; *[wide]: Cast",
    ),
    Fault(
        "data",
        "one row",
        "rows",
        "(TOKENS, WIDTH))",
        "(TOKENS, WIDTH)); rows[2, 3] += 0.5",
        "*[square]: Mul; *[normed]: Div; *[residual]: Add; *: SimplifiedLayerNormalization",
    ),
    Fault(
        "formula",
        "mean by the maximum",
        "mean",
        '"ReduceMean"',
        '"ReduceMax"',
        "*[mean]: ReduceMax; a *[mean]: ReduceMean; a *: SimplifiedLayerNormalization",
    ),
)
