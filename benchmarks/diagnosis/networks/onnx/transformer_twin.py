"""The same language model: a product for each of q, k and v, scores by Einsum, norms and GELU written out, the loss without a log-softmax."""

import math

import numpy as np
from model import Model

MODE = "disabled"  # <mode>
D, H, T, V, B = 16, 2, 8, 19, 2

net = Model(seed=0, scale=0.2)
op, constant = net.op, net.fixed
drawn = {"tokens": net.random.standard_normal((V, D)), "positions": net.random.standard_normal((T, D)) * 0.2}
for layer in ("0", "1"):
    for part, size_in, size_out in (("qkv", D, 3 * D), ("out", D, D), ("up", D, 4 * D), ("down", 4 * D, D)):
        drawn[f"{part}{layer}"] = net.random.standard_normal((size_in, size_out)) * 0.2
        drawn[f"{part}{layer}b"] = net.random.standard_normal(size_out) * 0.2
drawn["head"], drawn["headb"] = net.random.standard_normal((D, V)) * 0.2, net.random.standard_normal(V) * 0.2


def dense(h, name, part, columns=slice(None)):
    matrix = constant(f"{name}.matrix", drawn[part][:, columns])
    made = op("MatMul", h, matrix, name=f"{name}.dense")
    return op("Add", constant(f"{name}.offset", drawn[f"{part}b"][columns]), made, name=f"{name}.shifted")


def normalised(h, name):
    axis = constant(f"{name}.axis", [-1], np.int64)
    centre = op("Sub", h, op("ReduceMean", h, axis, name=f"{name}.mean"), name=f"{name}.centre")
    variance = op("ReduceMean", op("Mul", centre, centre, name=f"{name}.square"), axis, name=f"{name}.variance")
    above = op("Add", variance, constant(f"{name}.eps", 1e-5), name=f"{name}.above")  # <norm>
    return op(
        "Mul",
        centre,
        op("Reciprocal", op("Sqrt", above, name=f"{name}.root"), name=f"{name}.inverse"),
        name=f"{name}.normed",
    )


def attend(h, layer):
    sizes = constant(f"sizes{layer}", [B, T, H, D // H], np.int64)
    v = op("Reshape", dense(h, f"v{layer}", f"qkv{layer}", slice(2 * D, 3 * D)), sizes, name=f"v{layer}.heads")  # <v>
    k = op("Reshape", dense(h, f"k{layer}", f"qkv{layer}", slice(D, 2 * D)), sizes, name=f"k{layer}.heads")  # <k>
    q = op("Reshape", dense(h, f"q{layer}", f"qkv{layer}", slice(0, D)), sizes, name=f"q{layer}.heads")  # <q>
    q = op("Mul", q, constant(f"scale{layer}", 1 / math.sqrt(D // H)), name=f"q{layer}.scaled")  # <scaled>
    scores = op("Einsum", q, k, name=f"scores{layer}", equation="bqhd,bkhd->bhqk")  # <scores>
    scores = op("Add", scores, hidden, name=f"seen{layer}")  # <masked>
    shares = op("Softmax", scores, name=f"shares{layer}", axis=-1)  # <shares>
    mixed = op("Einsum", shares, v, name=f"mixed{layer}", equation="bhqk,bkhd->bqhd")  # <mixed>
    whole = constant(f"whole{layer}", [B, T, D], np.int64)
    return dense(op("Reshape", mixed, whole, name=f"joined{layer}"), f"out{layer}", f"out{layer}")


def gelu(h, name):
    cube = op("Pow", h, constant(f"{name}.three", 3.0), name=f"{name}.cube")
    bent = op("Mul", cube, constant(f"{name}.part", 0.044715), name=f"{name}.bent")
    inner = op("Add", h, bent, name=f"{name}.inner")
    wide = op("Mul", inner, constant(f"{name}.factor", math.sqrt(2 / math.pi)), name=f"{name}.wide")
    wave = op("Tanh", wide, name=f"{name}.tanh")
    half = op("Mul", h, constant(f"{name}.half", 0.5), name=f"{name}.halved")
    return op("Add", half, op("Mul", half, wave, name=f"{name}.waved"), name=f"{name}.gelu")


hidden = constant("hidden", np.triu(np.full((T, T), -1e9), 1))  # <mask>
stream = op("Gather", constant("words", drawn["tokens"]), "ids", name="words.taken", axis=0)  # <embedded>
stream = op("Add", constant("places", drawn["positions"]), stream, name="placed")  # <placed>
for layer in ("0", "1"):
    mixed = attend(normalised(stream, f"first{layer}"), layer)
    stream = op("Sum", mixed, stream, name=f"after_attention{layer}")  # <residual1>
    widened = dense(normalised(stream, f"second{layer}"), f"up{layer}", f"up{layer}")  # <up>
    narrowed = dense(gelu(widened, f"act{layer}"), f"down{layer}", f"down{layer}")  # <down>
    stream = op("Sum", narrowed, stream, name=f"after_layer{layer}")  # <residual2>
scores = dense(normalised(stream, "last"), "head", "head")
raised = op("Max", scores, constant("floor", -4.0), name="raised")
scores = op("Min", raised, constant("ceiling", 4.0), name="kept")  # <bounded>
rest = op("ReduceLogSumExp", scores, constant("vocabulary", [-1], np.int64), name="rest")
picked = op("GatherElements", scores, "targets", name="picked", axis=-1)  # <chosen>
losses = op("Sub", rest, picked, name="losses")
loss = op("Mul", op("ReduceSum", losses, name="total", keepdims=0), constant("each", 1 / 16), name="loss")  # <loss>

run = net.session(MODE, [("ids", np.int64, [B, T]), ("targets", np.int64, [B, T, 1])], [scores, loss], opset=20)
for number in range(2):
    text = net.random.integers(0, V, (B, T + 1))  # <window>
    values = run.run(None, {"ids": text[:, :-1], "targets": text[:, 1:, None]})  # <feeds>
    print(f"step {number} loss {values[1].item()!r}")
