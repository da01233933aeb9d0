"""A tagger of sequences: an embedding, a bidirectional LSTM, a GRU and attention over time."""

import numpy as np
from model import Model

MODE = "disabled"  # <mode>

model = Model(seed=2)
random, fixed, weight, op = model.random, model.fixed, model.weight, model.op


TOKENS, BATCH, WIDTH, VOCABULARY = 7, 2, 6, 15

x = op("Gather", weight("tokens", VOCABULARY, WIDTH, scale=1.0), "ids", name="embedded")  # <embedded>
x = op("Mul", x, fixed("gain", np.sqrt(WIDTH)), name="scaled")  # <scaled>
states = [
    weight(f"lstm.{name}", *shape)
    for name, shape in (("w", (2, 4 * WIDTH, WIDTH)), ("r", (2, 4 * WIDTH, WIDTH)), ("b", (2, 8 * WIDTH)))
]  # <lstm-weights>
x, last, cell = op(
    "LSTM", x, *states, "lengths", name="lstm", outputs=3, hidden_size=WIDTH, direction="bidirectional"
)  # <lstm>
x = op("Transpose", x, name="by_time", perm=[0, 2, 1, 3])  # <by-time>
x = op("Reshape", x, fixed("joined", [TOKENS, BATCH, 2 * WIDTH], np.int64), name="joined_ways")  # <joined>
x = op(
    "LayerNormalization",
    x,
    fixed("norm.scale", np.ones(2 * WIDTH)),
    fixed("norm.shift", np.zeros(2 * WIDTH)),
    name="norm",
    epsilon=1e-5,
)  # <norm>
gates = [
    weight(f"gru.{name}", *shape)
    for name, shape in (("w", (1, 3 * WIDTH, 2 * WIDTH)), ("r", (1, 3 * WIDTH, WIDTH)), ("b", (1, 6 * WIDTH)))
]  # <gru-weights>
x, final = op("GRU", x, *gates, name="gru", outputs=2, hidden_size=WIDTH, linear_before_reset=1)  # <gru>
x = op("Squeeze", x, fixed("ways", [1], np.int64), name="squeezed")  # <squeezed>
scores = op("ReduceSum", x, fixed("last_axis", [2], np.int64), name="scores", keepdims=1)  # <scores>
shares = op("Softmax", scores, name="shares", axis=0)  # <shares>
mixed = op("Mul", x, shares, name="mixed")  # <mixed>
pooled = op("ReduceSum", mixed, fixed("time", [0], np.int64), name="pooled", keepdims=0)  # <pooled>
result = op("Tanh", op("MatMul", pooled, weight("head.weight", WIDTH, 4), name="head"), name="result")  # <result>

session = model.session(MODE, [("ids", np.int64, [7, 2]), ("lengths", np.int32, [2])], [result])
for step in range(2):
    ids = random.integers(0, VOCABULARY, (TOKENS, BATCH))  # <ids>
    feeds = {"ids": ids, "lengths": np.array([7, 5], np.int32)}  # <feeds>
    results = session.run(None, feeds)  # <run>
    print(f"step {step} loss {float(np.square(results[0]).sum())!r}")
