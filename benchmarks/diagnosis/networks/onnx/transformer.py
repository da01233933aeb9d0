"""A causal language model of two blocks with its loss, as a model that this script builds and runs."""

import math

import numpy as np
from model import Model

MODE = "disabled"  # <mode>
WIDTH, HEADS, TOKENS, VOCABULARY, BATCH = 16, 2, 8, 19, 2

model = Model(seed=0, scale=0.2)
random, fixed, weight, op = model.random, model.fixed, model.weight, model.op


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

session = model.session(
    MODE, [("ids", np.int64, [BATCH, TOKENS]), ("targets", np.int64, [BATCH, TOKENS, 1])], [logits, loss], opset=20
)
for step in range(2):
    window = random.integers(0, VOCABULARY, (BATCH, TOKENS + 1))  # <window>
    feeds = {"ids": window[:, :-1], "targets": window[:, 1:, None]}  # <feeds>
    _, loss = session.run(None, feeds)  # <run>
    print(f"step {step} loss {loss.item()!r}")
