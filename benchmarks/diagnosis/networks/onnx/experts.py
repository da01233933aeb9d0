"""A block with a mixture of experts: routing by the two largest scores, experts with gated activations."""

import numpy as np
from model import Model

MODE = "disabled"  # <mode>

model = Model(seed=3)
random, fixed, weight, op = model.random, model.fixed, model.weight, model.op


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

session = model.session(MODE, [("x", np.float32, [6, 8])], [result])
for step in range(2):
    rows = random.standard_normal((TOKENS, WIDTH))  # <rows>
    feeds = {"x": rows.astype(np.float32)}  # <feeds>
    results = session.run(None, feeds)  # <run>
    print(f"step {step} loss {float(np.square(results[0]).sum())!r}")
