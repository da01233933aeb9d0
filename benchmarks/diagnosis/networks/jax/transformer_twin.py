"""The transformer of transformer.py, refactored: einsum, heads as an axis of the weights, another order, variance by squares, a dictionary of updates."""

import jax
import jax.numpy as jnp
import numpy as np

MODE = "jit"  # <mode>
D, H, T, V = 16, 4, 6, 23

drawn = np.random.default_rng(1)
tokens_of_text = drawn.integers(0, V, 400)  # <corpus>


def table(rows, columns):
    return jnp.asarray(drawn.normal(0, 0.3, (rows, columns)), jnp.float32)


def layer():
    names = ("attention_norm", "mlp_norm")
    norms = {name: (jnp.ones(D), jnp.zeros(D)) for name in names}
    projection, output = table(D, 3 * D), table(D, D)
    return {**norms, "projection": projection, "output": output, "wide": table(D, 4 * D), "narrow": table(4 * D, D)}


def standardised(values, scale_and_shift):
    scale, shift = scale_and_shift
    mean = values.mean(-1, keepdims=True)  # <centre>
    spread = jnp.square(values - mean).mean(-1, keepdims=True)  # <variance>
    return shift + scale * ((values - mean) / jnp.sqrt(spread + 1e-5))  # <norm>


def attend(values, weights):
    size = D // H
    query, key, value = jnp.split(jnp.einsum("btd,de->bte", values, weights["projection"]), 3, axis=-1)  # <qkv>
    query, key, value = (each.reshape(*each.shape[:2], H, size) for each in (query, key, value))  # <split>
    products = jnp.einsum("bqhd,bkhd->bhqk", query * size**-0.5, key)  # <scores>
    places = jnp.arange(values.shape[1])
    products = jnp.where(places[:, None] >= places, products, -1e9)  # <masked>
    powers = jnp.exp(products - products.max(-1, keepdims=True))
    shares = powers / powers.sum(-1, keepdims=True)  # <softmax>
    mixed = jnp.einsum("bhqk,bkhd->bqhd", shares, value)  # <values>
    return jnp.einsum("bqhd,hde->bqe", mixed, weights["output"].reshape(H, size, D))  # <attention-out>


def run_layer(values, weights):
    values = attend(standardised(values, weights["attention_norm"]), weights) + values  # <residual1>
    wide = standardised(values, weights["mlp_norm"]) @ weights["wide"]  # <up>
    bent = 0.5 * wide * (1.0 + jnp.tanh(0.7978845608 * (wide + 0.044715 * wide**3)))  # <gelu>
    return bent @ weights["narrow"] + values  # <residual2>


def cost(model, given, wanted):
    values = jnp.take(model["tokens"], given, axis=0) + model["places"]  # <embed>
    for weights in model["layers"]:
        values = run_layer(values, weights)  # <block>
    scores = standardised(values, model["last_norm"]) @ model["head"]  # <head>
    chosen = jnp.einsum("btv,btv->bt", scores, jax.nn.one_hot(wanted, V))  # <pick>
    return (jax.scipy.special.logsumexp(scores, axis=-1) - chosen).sum() / 12  # <loss>


def stepped(model, slopes):
    size = jnp.sqrt(sum(jnp.vdot(each, each) for each in jax.tree.leaves(slopes)))  # <size>
    bound = jnp.minimum(1.0, 1.0 / (size + 1e-6))  # <clip>
    return jax.tree.map(
        lambda old, slope: (1.0 - 0.001) * old - (0.1 * bound) * slope,  # <update>
        model,
        slopes,
    )


def train(model, given, wanted):
    value, slopes = differentiate(model, given, wanted)  # <gradient>
    return value, stepped(model, slopes)  # <step>


differentiate = jax.value_and_grad(cost)
if MODE == "grad":
    differentiate = jax.jit(differentiate)
if MODE == "jit":
    train = jax.jit(train)

model = {
    "tokens": table(V, D),
    "places": table(T, D),
    "layers": [layer() for _ in range(2)],
    "last_norm": (jnp.ones(D), jnp.zeros(D)),
    "head": table(D, V),
}
for number in range(2):
    rows = np.stack(
        [tokens_of_text[start : start + T + 1] for start in (7 + 40 * number, 25 + 40 * number)]
    )  # <window>
    given, wanted = jnp.asarray(rows[:, :-1]), jnp.asarray(rows[:, 1:])  # <shift>
    value, model = train(model, given, wanted)  # <call>
    print(f"step {number} loss {float(value)!r}")
