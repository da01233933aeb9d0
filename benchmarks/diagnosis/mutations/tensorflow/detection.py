"""Faults of the detection head in TensorFlow."""

from benchmarks.diagnosis.programs import Edit
from benchmarks.diagnosis.suite import Fault

MODES = ("function", "eager", "session", "keras")

FAULTS = (
    Fault("argument", "size of the anchors", "anchors", "1.2", "1.3", "anchors: *; decode-centre: *; decode-size: *"),
    Fault(
        "slice",
        "rows and columns exchanged",
        "centres",
        "tf.reshape(columns, [-1]), tf.reshape(rows, [-1])",
        "tf.reshape(rows, [-1]), tf.reshape(columns, [-1])",
        "centres: *; anchors: *; decode-centre: *",
    ),
    Fault("missing", "centres of the cells", "centres", " + 0.5", "", "a centres: AddV2; anchors: *; decode-centre: *"),
    Fault("argument", "a bound of the sizes", "decode-size", "2.0)", "0.1)", "decode-size: *"),
    Fault(
        "formula",
        "corners at the whole size",
        "corners",
        "centre - size / 2.0",
        "centre - size",
        "corners: *; a corners: RealDiv",
    ),
    Fault("formula", "union counts the overlap twice", "iou", " - inner +", " +", "a iou: Sub; iou: AddV2"),
    Fault("formula", "kink of the smooth L1", "smooth", "size - 0.5", "size", "a smooth: *; smooth: *"),
    Fault("argument", "exponent of the focal loss", "focal", "** 2.0", "** 3.0", "focal: *"),
    Fault("argument", "slope of the leaky ReLU", "stem", "0.1", "0.01", "stem: *"),
    Fault(
        "backward",
        "the quality is not held fixed",
        "quality",
        "tf.stop_gradient(overlap(found, box))",
        "overlap(found, box)",
        "*: * @backward; a quality: *; quality: *",
    ),
    Fault("slice", "the easiest instead of the hardest", "hardest", "[:, -6:]", "[:, :6]", "hardest: *"),
    Fault("argument", "weight of the regression", "loss", "0.5 *", "0.4 *", "loss: Mul"),
    Fault("parameter", "weights of the boxes", "logits", "of_classes", "of_boxes[:, :3]", "logits: *; a logits: *"),
    Fault("optimizer", "learning rate", "update", "0.2", "0.1", "update: Mul @*"),
)

CLEAN = (
    ("softplus by its formula", (Edit("entropy", "tf.nn.softplus(logits)", "tf.math.log1p(tf.exp(logits))"),)),
    ("squares by a power", (Edit("smooth", "0.5 * x * x", "0.5 * x**2.0"),)),
)
