"""Faults of the detection head in JAX."""

from benchmarks.diagnosis.programs import Edit
from benchmarks.diagnosis.suite import Fault

MODES = ("jit", "grad", "plain")

FAULTS = (
    Fault("argument", "size of the anchors", "anchors", "1.2", "1.3", "anchors: *"),
    Fault(
        "slice",
        "rows and columns exchanged",
        "centres",
        "columns.ravel(), rows.ravel()",
        "rows.ravel(), columns.ravel()",
        "centres: *",
    ),
    Fault("missing", "centres of the cells", "centres", " + 0.5", "", "a centres: add; anchors: *"),
    Fault("argument", "a bound of the sizes", "decode-size", "2.0)", "0.1)", "decode-size: *"),
    Fault(
        "formula",
        "corners at the whole size",
        "corners",
        "centre - size / 2",
        "centre - size",
        "corners: *; a corners: div|true_divide",
    ),
    Fault("formula", "union counts the overlap twice", "iou", " - inner +", " +", "a iou: sub|subtract; iou: add"),
    Fault("formula", "kink of the smooth L1", "smooth", "size - 0.5", "size", "a smooth: *; smooth: *"),
    Fault("argument", "exponent of the focal loss", "focal", "** 2.0", "** 3.0", "focal: *"),
    Fault("argument", "slope of the leaky ReLU", "stem", "0.1", "0.01", "stem: *"),
    Fault(
        "backward",
        "the quality is not held fixed",
        "quality",
        "jax.lax.stop_gradient(overlap(found, box))",
        "overlap(found, box)",
        "*: * @backward; a quality: *; quality: *",
    ),
    Fault("slice", "the easiest instead of the hardest", "hardest", "[:, -6:]", "[:, :6]", "hardest: *"),
    Fault("argument", "weight of the regression", "loss", "0.5 *", "0.4 *", "loss: mul|multiply"),
    Fault(
        "parameter", "weights of the classes", "logits", 'parameters["class"]', 'parameters["box"][:, :3]', "logits: *"
    ),
    Fault("optimizer", "learning rate", "update", "0.2", "0.1", "update: mul|multiply @*"),
)

CLEAN = (
    ("softplus by logaddexp", (Edit("entropy", "jax.nn.softplus(logits)", "jnp.logaddexp(logits, 0.0)"),)),
    ("squares by a power", (Edit("smooth", "0.5 * x * x", "0.5 * x**2"),)),
)
