"""A detection head: features at two scales, boxes from anchors, and the suppression of overlapping boxes."""

import numpy as np
from model import Model

MODE = "disabled"  # <mode>

model = Model(seed=5)
random, fixed, weight, op = model.random, model.fixed, model.weight, model.op


CHANNELS, SIZE, CLASSES = 6, 8, 3

x = op(
    "Conv", "images", weight("stem.kernel", CHANNELS, 3, 3, 3), name="stem", pads=[1, 1, 1, 1], strides=[2, 2]
)  # <stem>
x = op("HardSwish", x, name="stem/activation")  # <activation>
deep = op(
    "Conv", x, weight("deep.kernel", CHANNELS, CHANNELS, 3, 3), name="deep", pads=[1, 1, 1, 1], strides=[2, 2]
)  # <deep>
wide = op(
    "Resize",
    deep,
    "",
    fixed("factors", [1.0, 1.0, 2.0, 2.0]),
    name="wide",
    mode="linear",
    coordinate_transformation_mode="half_pixel",
)  # <wide>
x = op("Add", x, wide, name="merged")  # <merged>
x = op("PRelu", x, fixed("slope", 0.1 + 0.1 * random.random((CHANNELS, 1, 1))), name="slanted")  # <slanted>
x = op(
    "Conv", x, weight("head.kernel", 4 + CLASSES, CHANNELS, 1, 1), weight("head.bias", 4 + CLASSES), name="head"
)  # <head>
x = op("Reshape", x, fixed("cells", [2, 4 + CLASSES, SIZE * SIZE], np.int64), name="cells_of")
places, classes = op("Split", x, fixed("sizes", [4, CLASSES], np.int64), name="parts", outputs=2, axis=1)  # <parts>
scores = op("Sigmoid", classes, name="scores")  # <scores>
offsets = op("Tanh", places, name="offsets")  # <offsets>
offsets = op("Transpose", offsets, name="by_cell", perm=[0, 2, 1])  # <by-cell>
y, z = np.meshgrid(np.arange(SIZE), np.arange(SIZE), indexing="ij")
anchors = fixed("anchors", np.stack([y, z, y + 2, z + 2], -1).reshape(1, SIZE * SIZE, 4))  # <anchors>
boxes = op("Add", anchors, op("Mul", offsets, fixed("reach", 1.5), name="moves"), name="boxes")  # <boxes>
boxes = op("Clip", boxes, fixed("least", 0.0), fixed("most", float(SIZE)), name="inside")  # <inside>
kept = op(
    "NonMaxSuppression",
    boxes,
    scores,
    fixed("count", 5, np.int64),
    fixed("overlap", 0.4),
    fixed("least_score", 0.3),
    name="kept",
)  # <kept>
best, where = op(
    "TopK",
    op("ReduceMax", scores, fixed("class_axis", [1], np.int64), name="strongest", keepdims=0),
    fixed("few", [4], np.int64),
    name="best",
    outputs=2,
    axis=1,
)  # <best>
index = op("Unsqueeze", where, fixed("at_end", [-1], np.int64), name="index")
found = op("GatherND", boxes, index, name="found", batch_dims=1)  # <found>
areas = op(
    "ReduceProd",
    op(
        "Sub",
        op(
            "Slice",
            found,
            fixed("two", [2], np.int64),
            fixed("four", [4], np.int64),
            fixed("axis2", [2], np.int64),
            name="ends",
        ),
        op(
            "Slice",
            found,
            fixed("zero", [0], np.int64),
            fixed("two_", [2], np.int64),
            fixed("axis2_", [2], np.int64),
            name="begins",
        ),
        name="extents",
    ),
    fixed("last", [-1], np.int64),
    name="areas",
    keepdims=0,
)  # <areas>
result = op("Mul", best, areas, name="result")  # <result>

session = model.session(MODE, [("images", np.float32, [2, 3, 16, 16])], [result, scores, boxes])
for step in range(2):
    images = random.random((2, 3, 16, 16)) * 2 - 1  # <images>
    feeds = {"images": images.astype(np.float32)}  # <feeds>
    results = session.run(None, feeds)  # <run>
    print(f"step {step} loss {float(np.square(results[0]).sum())!r}")
