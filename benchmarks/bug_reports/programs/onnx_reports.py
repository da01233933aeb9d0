"""Programs of public bug reports about ONNX Runtime: `python onnx_reports.py NUMBER VARIANT` runs variant a or b."""

import sys

import numpy as np
import onnxruntime as ort
from onnx import helper, numpy_helper

number, variant = int(sys.argv[1]), sys.argv[2]
rng = np.random.default_rng(0)


def constant(name, value):
    return numpy_helper.from_array(np.asarray(value), name)


def run(nodes, feeds, constants=(), outputs=("y",), opset=17, level=None):
    kinds = {name: helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in feeds.items()}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, feeds[name].shape) for name, kind in kinds.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        list(constants),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    options = ort.SessionOptions()
    if level is None:
        level = variant == "b"
    options.graph_optimization_level = (
        ort.GraphOptimizationLevel.ORT_ENABLE_ALL if level else ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    )
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    print([each.astype(np.float64).sum() for each in session.run(None, feeds)])


node = helper.make_node


def run_layer_norm(x, keepdims=1):
    """A layer norm that is written out, which the runtime fuses."""
    nodes = [
        node("ReduceMean", ["x"], ["m"], axes=[-1], keepdims=keepdims),
        node("Sub", ["x", "m"], ["d"]),
        node("Pow", ["d", "two"], ["p"]),
        node("ReduceMean", ["p"], ["v"], axes=[-1], keepdims=keepdims),
        node("Add", ["v", "eps"], ["ve"]),
        node("Sqrt", ["ve"], ["s"]),
        node("Div", ["d", "s"], ["n"]),
        node("Mul", ["n", "scale"], ["ns"]),
        node("Add", ["ns", "bias"], ["y"]),
    ]
    constants = [
        constant("two", np.float32(2)),
        constant("eps", np.float32(1e-5)),
        constant("scale", np.ones(x.shape[-1], np.float32)),
        constant("bias", np.zeros(x.shape[-1], np.float32)),
    ]
    run(nodes, {"x": x}, constants)


if number == 7375:
    x, y, z = rng.normal(size=(2, 2, 2)), rng.normal(size=(2, 2)), rng.normal(size=(2, 2, 2))
    feeds = {"x": x.astype(np.float32), "y": y.astype(np.float32), "z": z.astype(np.float32)}
    run(
        [node("Einsum", ["x", "y", "z"], ["y1"], equation="abc,cd,def->abd"), node("Identity", ["y1"], ["out"])],
        feeds,
        outputs=("out",),
    )
elif number == 10491:  # softplus loses digits against log1p(exp(x))
    feeds = {"x": np.float32([-12.3392, -14.0, 1.0])}
    written = [node("Exp", ["x"], ["e"]), node("Add", ["e", "one"], ["s"]), node("Log", ["s"], ["y"])]
    run(
        [node("Softplus", ["x"], ["y"])] if variant == "a" else written,
        feeds,
        [constant("one", np.float32(1))],
        level=False,
    )
elif number == 30513:  # LayerNormalization fused although keepdims is 0
    x = rng.normal(size=(4, 4)).astype(np.float32)
    run_layer_norm(x, keepdims=0)
elif number == 24711:  # Conv between Quantize and Dequantize, with other scales, optimised
    x, w = rng.normal(size=(1, 3, 8, 8)).astype(np.float32), rng.normal(size=(4, 3, 3, 3)).astype(np.float32)
    s = lambda name, value: constant(name, np.float32(value))
    nodes = [
        node("QuantizeLinear", ["x", "sx", "zx"], ["xq"]),
        node("DequantizeLinear", ["xq", "sx", "zx"], ["xd"]),
        node("QuantizeLinear", ["w", "sw", "zw"], ["wq"]),
        node("DequantizeLinear", ["wq", "sw", "zw"], ["wd"]),
        node("Conv", ["xd", "wd"], ["c"]),
        node("QuantizeLinear", ["c", "sy", "zx"], ["cq"]),
        node("DequantizeLinear", ["cq", "sy", "zx"], ["y"]),
    ]
    constants = [
        s("sx", 0.03),
        s("sw", 0.02),
        s("sy", 0.1),
        constant("zx", np.uint8(128)),
        constant("zw", np.int8(0)),
        constant("w", w),
    ]
    run(nodes, {"x": x}, constants)
elif number == 25259:  # two quantised pairs in a row
    x = rng.normal(size=(2, 16)).astype(np.float32)
    s = lambda name, value: constant(name, np.float32(value))
    nodes = [
        node("QuantizeLinear", ["x", "s1", "z"], ["q1"]),
        node("DequantizeLinear", ["q1", "s1", "z"], ["d1"]),
        node("QuantizeLinear", ["d1", "s2", "z"], ["q2"]),
        node("DequantizeLinear", ["q2", "s2", "z"], ["d2"]),
        node("Relu", ["d2"], ["y"]),
    ]
    run(nodes, {"x": x}, [s("s1", 0.05), s("s2", 0.031), constant("z", np.uint8(128))])
elif number == 15977:  # float16 MatMul is computed in float32 with casts
    x, w = rng.normal(size=(5, 64)).astype(np.float16) * 3, rng.normal(size=(64, 5)).astype(np.float16)
    run([node("MatMul", ["x", "w"], ["m"]), node("Identity", ["m"], ["y"])], {"x": x}, [constant("w", w)])
elif number == 18946:  # Conv against im2col and MatMul: rounding
    x, w = rng.uniform(0, 255, size=(1, 1, 16, 16)).astype(np.float32), rng.normal(size=(1, 1, 3, 3)).astype(np.float32)
    pads = {"pads": [1, 1, 1, 1]}
    if variant == "a":
        run([node("Conv", ["x", "w"], ["y"], **pads)], {"x": x}, [constant("w", w)], level=False)
    else:
        run(
            [node("Pad", ["x", "p"], ["xp"]), node("Conv", ["xp", "w"], ["y"])],
            {"x": x},
            [constant("w", w), constant("p", np.int64([0, 0, 1, 1, 0, 0, 1, 1]))],
            level=False,
        )
elif number == 4293:  # LayerNormalization fused: rounding
    x = (rng.normal(size=(2, 16)) * 5 + 100).astype(np.float32)
    run_layer_norm(x)
else:
    raise SystemExit(f"no report {number}")
