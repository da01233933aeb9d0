"""Faults of the transformer in ONNX Runtime. In the mode "all" the runtime fuses some operators, which a truth then names, too."""

from benchmarks.diagnosis.programs import Edit
from benchmarks.diagnosis.suite import Fault

MODES = ("disabled", "all")
CLEAN = (
    ("by a factor", (Edit("scaled", 'op("Div", scores, fixed(f"{name}.root", ', 'op("Mul", scores, fixed(f"{name}.root", 1 / '),)),
    ("sum in another order", (Edit("placed", 'op("Add", x, weight("positions", TOKENS, WIDTH)', 'op("Add", weight("positions", TOKENS, WIDTH), x'),)),
)  # fmt: skip
FAULTS = (
    Fault("formula", "exact GELU", "gelu", '"tanh"', '"none"', "*[gelu]: Gelu|BiasGelu|FastGelu"),
    Fault(
        "missing",
        "scores not scaled",
        "scaled",
        'op("Div"',
        'scores or op("Div"',
        "*[masked]: Where; a *[scaled]: Div; *[scores]: MatMul|FusedMatMul; a *[scores]: FusedMatMul",
    ),
    Fault("slice", "mask one off", "mask", ", 0)", ", 1)", "*[masked]: Where"),
    Fault("argument", "epsilon", "norm", "1e-5", "1e-3", "*[norm]: LayerNormalization"),
    Fault(
        "missing",
        "residual lost",
        "residual1",
        '"Add", x, ',
        '"Identity", ',
        "*[residual1]: Identity; a *[residual1]: Add; *[norm2]: LayerNormalization; *: SkipLayerNormalization",
    ),
    Fault(
        "cast",
        "softmax in eight bits",
        "shares",
        'op("Softmax", scores, name=f"{name}/shares", axis=-1)',
        'op("DequantizeLinear", op("QuantizeLinear", op("Softmax", scores, name=f"{name}/shares", axis=-1), fixed(f"{name}.unit", 1 / 255), name=f"{name}/narrow"), f"{name}.unit", name=f"{name}/wide")',
        "*[narrow]: QuantizeLinear; *[wide]: DequantizeLinear; *[shares]: QLinearSoftmax|Softmax",
    ),
    Fault("argument", "divisor of the loss", "loss", "-16.0", "-15.0", "*[loss]: Div"),
    Fault(
        "argument",
        "order of the axes",
        "joined",
        "[0, 2, 1, 3]",
        "[0, 1, 2, 3]",
        "*[joined]: Transpose; a *[joined]: Transpose; *[whole]: Reshape",
    ),
    Fault("argument", "bound of the logits", "bounded", '"high", 4.0', '"high", 0.5', "*[bounded]: Clip"),
    Fault("parameter", "queries for values", "mixed", "shares, v", "shares, q", "*[mixed]: MatMul|FusedMatMul"),
    Fault("argument", "axis of the softmax", "shares", "axis=-1", "axis=-2", "*[shares]: Softmax"),
    Fault(
        "slice",
        "positions one off",
        "placed",
        'weight("positions", TOKENS, WIDTH)',
        'op("Gather", weight("positions", TOKENS, WIDTH), fixed("rolled", np.roll(np.arange(TOKENS), 1), np.int64), name="moved", axis=0)',
        "*[moved]: Gather; *[placed]: Add",
    ),
    Fault(
        "data",
        "targets not shifted",
        "feeds",
        "window[:, 1:, None]",
        "window[:, :-1, None]",
        "*[chosen]: GatherElements",
    ),
    Fault(
        "data",
        "another token",
        "window",
        "TOKENS + 1))",
        "TOKENS + 1)); window[0, 3] = (window[0, 3] + 1) % VOCABULARY",
        "*[embedded]: Gather; *[chosen]: GatherElements",
    ),
    Fault(
        "missing",
        "norm before the network",
        "up",
        'norm(x, f"{name}/norm2")',
        "x",
        "*[up]: MatMul|Gemm|Reshape; a *[norm2]: LayerNormalization; *[up]: FusedGemm",
    ),
    Fault(
        "cast",
        "embedding in half precision",
        "embedded",
        'op("Gather", table, "ids", name="embedded", axis=0)',
        'op("Cast", op("Cast", op("Gather", table, "ids", name="embedded", axis=0), name="narrow", to=10), name="wide", to=1)',
        "*[narrow]: Cast; *[wide]: Cast",
    ),
    Fault(
        "parameter",
        "queries and keys exchanged",
        "parts",
        "q, k, v",
        "k, q, v",
        "*[attention/q]: Reshape|Transpose; *[attention/k]: Reshape|Transpose; *[parts]: Split; *[scores]: MatMul|FusedMatMul",
    ),
    Fault(
        "order",
        "norm after the sum",
        "residual2",
        'op("Add", x, linear',
        'op("Sub", x, linear',
        "*[residual2]: Sub; a *[residual2]: Add",
    ),
)
