"""A causal transformer of two blocks as an ONNX model in ONNX Runtime: layer norms, GELU, the loss."""

import math

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

WIDTH, HEADS, TOKENS, VOCABULARY = 16, 4, 6, 23

numbers = np.random.default_rng(1)
nodes, weights = [], []


def fixed(name, value, dtype=np.float32):
    weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
    return name


def matrix(name, rows, columns):
    return fixed(name, numbers.normal(0, 0.3, (rows, columns)))


def op(kind, *inputs, name, outputs=1, **attributes):
    made = [name] if outputs == 1 else [f"{name}.{number}" for number in range(outputs)]
    nodes.append(helper.make_node(kind, inputs, made, name, **attributes))
    return made[0] if outputs == 1 else made


def norm(x, name):
    scale, shift = fixed(f"{name}.scale", np.ones(WIDTH)), fixed(f"{name}.shift", np.zeros(WIDTH))
    return op("LayerNormalization", x, scale, shift, name=name, axis=-1, epsilon=1e-5)  # <norm>


def heads(x, name, perm):
    split = op("Reshape", x, fixed(f"{name}.shape", [2, TOKENS, HEADS, -1], np.int64), name=f"{name}/split")
    return op("Transpose", split, name=f"{name}/heads", perm=perm)


def attention(x, name):
    qkv = op("MatMul", x, matrix(f"{name}.qkv", WIDTH, 3 * WIDTH), name=f"{name}/qkv")  # <qkv>
    q, k, v = op("Split", qkv, fixed(f"{name}.sizes", [WIDTH] * 3, np.int64), name=f"{name}/parts", outputs=3, axis=-1)
    q = heads(q, f"{name}/q", [0, 2, 1, 3])  # <q>
    k = heads(k, f"{name}/k", [0, 2, 3, 1])  # <k>
    v = heads(v, f"{name}/v", [0, 2, 1, 3])  # <v>
    scores = op("MatMul", q, k, name=f"{name}/scores")  # <scores>
    scores = op("Div", scores, fixed(f"{name}.root", math.sqrt(WIDTH // HEADS)), name=f"{name}/scaled")  # <scale>
    scores = op("Where", mask, scores, fixed(f"{name}.least", -1e9), name=f"{name}/masked")  # <masked>
    shares = op("Softmax", scores, name=f"{name}/shares", axis=-1)  # <softmax>
    mixed = op("MatMul", shares, v, name=f"{name}/mixed")  # <values>
    joined = op("Transpose", mixed, name=f"{name}/joined", perm=[0, 2, 1, 3])  # <join>
    joined = op("Reshape", joined, fixed(f"{name}.whole", [2, TOKENS, WIDTH], np.int64), name=f"{name}/whole")
    return op("MatMul", joined, matrix(f"{name}.out", WIDTH, WIDTH), name=f"{name}/out")  # <attention-out>


def block(x, name):
    x = op("Add", x, attention(norm(x, f"{name}/norm1"), name), name=f"{name}/residual1")  # <residual1>
    h = op("MatMul", norm(x, f"{name}/norm2"), matrix(f"{name}.up", WIDTH, 4 * WIDTH), name=f"{name}/up")  # <up>
    h = op("Gelu", h, name=f"{name}/gelu", approximate="tanh")  # <gelu>
    h = op("MatMul", h, matrix(f"{name}.down", 4 * WIDTH, WIDTH), name=f"{name}/down")  # <down>
    return op("Add", x, h, name=f"{name}/residual2")  # <residual2>


mask = fixed("mask", np.tril(np.ones((TOKENS, TOKENS))), np.bool_)  # <mask>
x = op("Gather", matrix("tokens", VOCABULARY, WIDTH), "ids", name="embedded", axis=0)  # <embed>
x = op("Add", x, matrix("positions", TOKENS, WIDTH), name="placed")  # <placed>
x = block(block(x, "block0"), "block1")
logits = op("MatMul", norm(x, "norm"), matrix("head", WIDTH, VOCABULARY), name="logits")  # <head>
logs = op("LogSoftmax", logits, name="logs", axis=-1)  # <log-softmax>
picked = op("GatherElements", logs, "targets", name="picked", axis=-1)  # <pick>
total = op("ReduceSum", picked, name="total", keepdims=0)  # <total>
loss = op("Div", op("Neg", total, name="negative"), fixed("count", 12.0), name="loss")  # <loss>

graph = helper.make_graph(
    nodes,
    "transformer",
    [
        helper.make_tensor_value_info("ids", TensorProto.INT64, [2, TOKENS]),
        helper.make_tensor_value_info("targets", TensorProto.INT64, [2, TOKENS, 1]),
    ],
    [helper.make_tensor_value_info(each, TensorProto.FLOAT, None) for each in (logits, loss)],
    weights,
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
for step in range(1):
    window = numbers.integers(0, VOCABULARY, (2, TOKENS + 1))  # <window>
    _, loss = session.run(None, {"ids": window[:, :-1], "targets": window[:, 1:, None]})  # <run>
    print(f"step {step} loss {loss.item()!r}")
