"""A detection head: features at two scales, boxes from anchors, and the suppression of overlapping boxes."""

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

MODE = "disabled"  # <mode>

random = np.random.default_rng(5)
nodes, weights = [], []


def fixed(name, value, dtype=np.float32):
    weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
    return name


def weight(name, *shape, scale=0.3):
    return fixed(name, random.standard_normal(shape) * scale)


def op(kind, *inputs, name, outputs=1, **attributes):
    made = [name] if outputs == 1 else [f"{name}.{number}" for number in range(outputs)]
    nodes.append(helper.make_node(kind, inputs, made, name, **attributes))
    return made[0] if outputs == 1 else made


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

real = TensorProto.FLOAT
graph = helper.make_graph(
    nodes,
    "detector",
    [helper.make_tensor_value_info("images", real, [2, 3, 16, 16])],
    [
        helper.make_tensor_value_info(value, real, None)
        for value in (
            result,
            scores,
            boxes,
        )
    ],
    weights,
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
options = onnxruntime.SessionOptions()
levels = onnxruntime.GraphOptimizationLevel
options.graph_optimization_level = {"disabled": levels.ORT_DISABLE_ALL, "all": levels.ORT_ENABLE_ALL}[MODE]
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
for step in range(2):
    images = random.random((2, 3, 16, 16)) * 2 - 1  # <images>
    feeds = {"images": images.astype(np.float32)}  # <feeds>
    results = session.run(None, feeds)  # <run>
    print(f"step {step} loss {float(np.square(results[0]).sum())!r}")
