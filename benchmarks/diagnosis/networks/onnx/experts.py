"""A block with a mixture of experts: routing by the two largest scores, experts with gated activations."""

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

MODE = "disabled"  # <mode>

random = np.random.default_rng(3)
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


TOKENS, WIDTH, EXPERTS, INNER = 6, 8, 4, 12

square = op("Mul", "x", "x", name="square")  # <square>
mean = op("ReduceMean", square, fixed("last", [-1], np.int64), name="mean", keepdims=1)  # <mean>
root = op("Sqrt", op("Add", mean, fixed("epsilon", 1e-6), name="shifted"), name="root")  # <root>
x = op("Div", "x", root, name="normed")  # <normed>
x = op("Mul", x, weight("norm.scale", WIDTH, scale=1.0), name="gained")  # <gained>
logits = op("MatMul", x, weight("router", WIDTH, EXPERTS, scale=1.0), name="router/logits")  # <logits>
shares = op("Softmax", logits, name="router/shares", axis=-1)  # <shares>
best, chosen = op(
    "TopK", shares, fixed("two", [2], np.int64), name="router/best", outputs=2, axis=-1, largest=1
)  # <best>
total = op("ReduceSum", best, fixed("lasts", [-1], np.int64), name="router/total", keepdims=1)  # <total>
best = op("Div", best, total, name="router/weights")  # <weights>
zeros = op("Mul", logits, fixed("zero", 0.0), name="router/zeros")
gates = op("ScatterElements", zeros, chosen, best, name="router/gates", axis=-1)  # <gates>
parts = op("Split", gates, name="router/parts", outputs=EXPERTS, axis=-1, num_outputs=EXPERTS)  # <parts>
result = None
for expert, gate in enumerate(parts):
    name = f"expert{expert}"
    up = op("MatMul", x, weight(f"{name}.up", WIDTH, INNER), name=f"{name}/up")  # <up>
    side = op("MatMul", x, weight(f"{name}.side", WIDTH, INNER), name=f"{name}/side")  # <side>
    sigmoid = op("Sigmoid", up, name=f"{name}/sigmoid")
    h = op("Mul", up, sigmoid, name=f"{name}/silu")  # <silu>
    h = op("Mul", h, side, name=f"{name}/gated")  # <gated>
    h = op("MatMul", h, weight(f"{name}.down", INNER, WIDTH), name=f"{name}/down")  # <down>
    h = op("Mul", h, gate, name=f"{name}/weighted")  # <weighted>
    result = h if result is None else op("Add", result, h, name=f"{name}/sum")  # <sum>
result = op("Add", "x", result, name="residual")  # <residual>

real = TensorProto.FLOAT
graph = helper.make_graph(
    nodes,
    "experts",
    [helper.make_tensor_value_info("x", real, [6, 8])],
    [helper.make_tensor_value_info(value, real, None) for value in (result,)],
    weights,
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
options = onnxruntime.SessionOptions()
levels = onnxruntime.GraphOptimizationLevel
options.graph_optimization_level = {"disabled": levels.ORT_DISABLE_ALL, "all": levels.ORT_ENABLE_ALL}[MODE]
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
for step in range(2):
    rows = random.standard_normal((TOKENS, WIDTH))  # <rows>
    feeds = {"x": rows.astype(np.float32)}  # <feeds>
    results = session.run(None, feeds)  # <run>
    print(f"step {step} loss {float(np.square(results[0]).sum())!r}")
