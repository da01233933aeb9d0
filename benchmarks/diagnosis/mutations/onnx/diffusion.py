"""Faults of the step of a diffusion model in ONNX Runtime. In the mode "all" the runtime makes QuickGelu of a product with a sigmoid."""

from benchmarks.diagnosis.programs import Edit
from benchmarks.diagnosis.suite import Fault

MODES = ("disabled", "all")
CLEAN = (
    ("by a division", (Edit("sample", 'op("Mul", clean, fixed("gain", 1 / np.sqrt(0.9))', 'op("Div", clean, fixed("gain", np.sqrt(0.9))'),)),
    ("sum in another order", (Edit("with-time", "h, t", "t, h"),)),
)  # fmt: skip
FAULTS = (
    Fault(
        "formula",
        "sine for cosine",
        "waves",
        'op("Cos"',
        'op("Sin"',
        "*[cosines]: Sin; a *[cosines]: Cos; *[waves]: Concat",
    ),
    Fault(
        "order",
        "waves exchanged",
        "concat",
        "sines, cosines",
        "cosines, sines",
        "*[waves]: Concat",
    ),
    Fault(
        "argument",
        "groups",
        "norm",
        "num_groups=2",
        "num_groups=4",
        "*[norm]: GroupNormalization; a *[norm]: GroupNormalization; *: Div",
    ),
    Fault("argument", "epsilon", "norm", "1e-5", "1e-2", "*[norm]: GroupNormalization; *: Cast|Add"),
    Fault(
        "missing",
        "time left out",
        "with-time",
        'op("Add"',
        'h or op("Add"',
        "*[down]: AveragePool|ReorderInput; a *[with_time]: Add; *[joined]: Concat",
    ),
    Fault(
        "formula",
        "maximum for average",
        "down",
        '"AveragePool"',
        '"MaxPool"',
        "*[down]: MaxPool; a *[down]: AveragePool",
    ),
    Fault("argument", "mode of the resize", "up", 'mode="nearest"', 'mode="linear"', "*[up]: Resize|Upsample"),
    Fault("order", "skip first", "joined", "h, skip", "skip, h", "*[joined]: Concat"),
    Fault("argument", "rate", "share", "0.3", "0.25", "*[share]: Mul|Conv; *[noise]: Conv"),
    Fault("formula", "noise added", "clean", '"Sub"', '"Add"', "*[clean]: Add; a *[clean]: Sub"),
    Fault("argument", "bound", "bounded", '"most", 3.0', '"most", 1.0', "*[bounded]: Clip"),
    Fault("data", "time of one sample", "feeds", "[40.0]", "[41.0]", "*[angles]: Mul"),
)
