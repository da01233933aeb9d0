"""A causal language model of two blocks with its loss, as a model that this script builds and runs."""

import math

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

MODE = "disabled"  # <mode>
WIDTH, HEADS, TOKENS, VOCABULARY, BATCH = 16, 2, 8, 19, 2

random = np.random.default_rng(0)
nodes, weights = [], []


def weight(name, *shape, scale=0.2):
    weights.append(numpy_helper.from_array((random.standard_normal(shape) * scale).astype(np.float32), name))
    return name


def fixed(name, value, dtype=np.float32):
    weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
    return name


def op(kind, *inputs, name, outputs=1, **attributes):
    made = [name] if outputs == 1 else [f"{name}.{number}" for number in range(outputs)]
    nodes.append(helper.make_node(kind, inputs, made, name, **attributes))
    return made[0] if outputs == 1 else made


def linear(x, name, width_in, width_out):
    product = op("MatMul", x, weight(f"{name}.weight", width_in, width_out), name=f"{name}/product")
    return op("Add", product, weight(f"{name}.bias", width_out), name=f"{name}/bias")


def norm(x, name):
    scale, shift = fixed(f"{name}.scale", np.ones(WIDTH)), fixed(f"{name}.shift", np.zeros(WIDTH))
    return op("LayerNormalization", x, scale, shift, name=name, axis=-1, epsilon=1e-5)  # <norm>


def heads(x, name, perm):
    split = op("Reshape", x, fixed(f"{name}.shape", [BATCH, TOKENS, HEADS, -1], np.int64), name=f"{name}/split")
    return op("Transpose", split, name=f"{name}/heads", perm=perm)


def attention(x, name):
    qkv = linear(x, f"{name}/qkv", WIDTH, 3 * WIDTH)
    sizes = fixed(f"{name}.sizes", [WIDTH] * 3, np.int64)
    q, k, v = op("Split", qkv, sizes, name=f"{name}/parts", outputs=3, axis=-1)  # <parts>
    q = heads(q, f"{name}/q", [0, 2, 1, 3])  # <q>
    k = heads(k, f"{name}/k", [0, 2, 3, 1])  # <k>
    v = heads(v, f"{name}/v", [0, 2, 1, 3])  # <v>
    scores = op("MatMul", q, k, name=f"{name}/scores")  # <scores>
    scores = op("Div", scores, fixed(f"{name}.root", math.sqrt(WIDTH // HEADS)), name=f"{name}/scaled")  # <scaled>
    scores = op("Where", mask, scores, fixed(f"{name}.least", -1e9), name=f"{name}/masked")  # <masked>
    shares = op("Softmax", scores, name=f"{name}/shares", axis=-1)  # <shares>
    mixed = op("MatMul", shares, v, name=f"{name}/mixed")  # <mixed>
    joined = op("Transpose", mixed, name=f"{name}/joined", perm=[0, 2, 1, 3])  # <joined>
    joined = op("Reshape", joined, fixed(f"{name}.whole", [BATCH, TOKENS, WIDTH], np.int64), name=f"{name}/whole")
    return linear(joined, f"{name}/out", WIDTH, WIDTH)


def block(x, name):
    x = op("Add", x, attention(norm(x, f"{name}/norm1"), f"{name}/attention"), name=f"{name}/residual1")  # <residual1>
    h = linear(norm(x, f"{name}/norm2"), f"{name}/up", WIDTH, 4 * WIDTH)  # <up>
    h = op("Gelu", h, name=f"{name}/gelu", approximate="tanh")  # <gelu>
    return op("Add", x, linear(h, f"{name}/down", 4 * WIDTH, WIDTH), name=f"{name}/residual2")  # <residual2>


mask = fixed("mask", np.tril(np.ones((TOKENS, TOKENS)), 0), np.bool_)  # <mask>
table = weight("tokens", VOCABULARY, WIDTH, scale=1.0)
x = op("Gather", table, "ids", name="embedded", axis=0)  # <embedded>
x = op("Add", x, weight("positions", TOKENS, WIDTH), name="placed")  # <placed>
x = block(x, "block0")
x = block(x, "block1")
logits = linear(norm(x, "norm"), "head", WIDTH, VOCABULARY)  # <head>
logits = op("Clip", logits, fixed("low", -4.0), fixed("high", 4.0), name="bounded")  # <bounded>
shares = op("LogSoftmax", logits, name="log_shares", axis=-1)  # <log-shares>
chosen = op("GatherElements", shares, "targets", name="chosen", axis=-1)  # <chosen>
total = op("ReduceSum", chosen, name="total", keepdims=0)  # <total>
loss = op("Div", total, fixed("count", -16.0), name="loss")  # <loss>

int64, real = TensorProto.INT64, TensorProto.FLOAT
graph = helper.make_graph(
    nodes,
    "transformer",
    [
        helper.make_tensor_value_info("ids", int64, [BATCH, TOKENS]),
        helper.make_tensor_value_info("targets", int64, [BATCH, TOKENS, 1]),
    ],
    [
        helper.make_tensor_value_info(logits, real, [BATCH, TOKENS, VOCABULARY]),
        helper.make_tensor_value_info(loss, real, []),
    ],
    weights,
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
options = onnxruntime.SessionOptions()
levels = onnxruntime.GraphOptimizationLevel
options.graph_optimization_level = {"disabled": levels.ORT_DISABLE_ALL, "all": levels.ORT_ENABLE_ALL}[MODE]
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
for step in range(2):
    window = random.integers(0, VOCABULARY, (BATCH, TOKENS + 1))  # <window>
    feeds = {"ids": window[:, :-1], "targets": window[:, 1:, None]}  # <feeds>
    _, loss = session.run(None, feeds)  # <run>
    print(f"step {step} loss {loss.item()!r}")
