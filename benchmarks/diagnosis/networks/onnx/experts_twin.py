"""The same block: all experts in one batched product, gates by a threshold on the shares, sums by Einsum."""

import numpy as np
from model import Model

MODE = "disabled"  # <mode>
N, D, E, M = 6, 8, 4, 12

net = Model(seed=3)
op, constant = net.op, net.fixed
gain, routes = net.random.standard_normal(D), net.random.standard_normal((D, E))
parts = [[net.random.standard_normal(size) * 0.3 for size in ((D, M), (D, M), (M, D))] for _ in range(E)]
ups, sides, downs = (np.stack(each) for each in zip(*parts, strict=True))

power = op("ReduceL2", "tokens", constant("last", [-1], np.int64), name="power", keepdims=1)
energy = op("Mul", power, power, name="energy")
energy = op("Mul", energy, constant("eighth", 1 / D), name="mean_energy")  # <mean>
lifted = op("Add", energy, constant("tiny", 1e-6), name="lifted")  # <lifted>
size = op("Pow", lifted, constant("inverse_root", -0.5), name="size")  # <root>
unit = op("Mul", "tokens", size, name="unit")  # <normed>
unit = op("Mul", constant("gain", gain), unit, name="gained")  # <gained>
routed = op("MatMul", unit, constant("routes", routes), name="routed")  # <logits>
shares = op("Softmax", routed, name="shares", axis=1)  # <shares>
top, _ = op("TopK", shares, constant("two", [2], np.int64), name="top", outputs=2, axis=1)  # <best>
least = op("ReduceMin", top, constant("axis", [1], np.int64), name="least", keepdims=1)
kept = op("Where", op("Less", shares, least, name="is_lost"), constant("nothing", 0.0), shares, name="kept")
total = op("ReduceSum", kept, constant("columns", [1], np.int64), name="all_kept")
gates = op("Div", kept, total, name="gates")  # <weights>
each = op("Unsqueeze", unit, constant("front", [0], np.int64), name="each")
up = op("MatMul", each, constant("ups", ups), name="ups.products")  # <up>
side = op("MatMul", each, constant("sides", sides), name="sides.products")  # <side>
above = op("Exp", op("Neg", up, name="negative"), name="exp")
below = op("Add", above, constant("one", 1.0), name="below")
opened = op("Div", up, below, name="opened")  # <silu>
inner = op("Mul", side, opened, name="inner")  # <gated>
outer = op("MatMul", inner, constant("downs", downs), name="downs.products")  # <down>
result = op("Einsum", gates, outer, name="mixed", equation="ne,end->nd")  # <weighted>
result = op("Sum", result, "tokens", name="result")  # <residual>

run = net.session(MODE, [("tokens", np.float32, [6, 8])], [result])
for number in range(2):
    rows = net.random.standard_normal((N, D))  # <rows>
    (values,) = run.run(None, {"tokens": rows.astype(np.float32)})  # <feeds>
    print(f"step {number} loss {float((values * values).sum())!r}")
