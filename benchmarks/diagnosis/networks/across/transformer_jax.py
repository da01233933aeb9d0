"""A causal transformer of two blocks in JAX: layer norms, GELU, clipped gradients, SGD with decay."""

import math

import jax
import jax.numpy as jnp
import numpy as np

WIDTH, HEADS, TOKENS, VOCABULARY = 16, 4, 6, 23

numbers = np.random.default_rng(1)


def matrix(rows, columns):
    return jnp.asarray(numbers.normal(0, 0.3, (rows, columns)), jnp.float32)


def block_parameters():
    norms = {f"norm{number}": {"scale": jnp.ones(WIDTH), "bias": jnp.zeros(WIDTH)} for number in (1, 2)}
    attention = {"qkv": matrix(WIDTH, 3 * WIDTH), "out": matrix(WIDTH, WIDTH)}
    return {**norms, **attention, "up": matrix(WIDTH, 4 * WIDTH), "down": matrix(4 * WIDTH, WIDTH)}


def layer_norm(x, norm):
    mean = jnp.mean(x, axis=-1, keepdims=True)  # <mean>
    variance = jnp.var(x, axis=-1, keepdims=True)  # <variance>
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * norm["scale"] + norm["bias"]  # <norm>


def attention(x, block):
    batch, tokens, _ = x.shape
    qkv = (x @ block["qkv"]).reshape(batch, tokens, 3, HEADS, WIDTH // HEADS)  # <qkv>
    q, k, v = jnp.einsum("btnhc->nbhtc", qkv)  # <split>
    scores = jnp.einsum("bhic,bhjc->bhij", q, k) / math.sqrt(WIDTH // HEADS)  # <scores>
    mask = jnp.tril(jnp.ones((tokens, tokens), bool))  # <mask>
    scores = jnp.where(mask, scores, -1e9)  # <masked>
    weights = jax.nn.softmax(scores, axis=-1)  # <softmax>
    y = jnp.einsum("bhij,bhjc->bihc", weights, v).reshape(batch, tokens, WIDTH)  # <values>
    return y @ block["out"]  # <attention-out>


def apply_block(x, block):
    x = x + attention(layer_norm(x, block["norm1"]), block)  # <residual1>
    h = layer_norm(x, block["norm2"]) @ block["up"]  # <up>
    h = jax.nn.gelu(h, approximate=True)  # <gelu>
    return x + h @ block["down"]  # <residual2>


def loss_of(parameters, ids, targets):
    x = parameters["tokens"][ids] + parameters["positions"]  # <embed>
    for block in parameters["blocks"]:
        x = apply_block(x, block)  # <block>
    logits = layer_norm(x, parameters["norm"]) @ parameters["head"]  # <head>
    logs = jax.nn.log_softmax(logits)  # <log-softmax>
    picked = jnp.take_along_axis(logs, targets[..., None], axis=-1)  # <pick>
    return -jnp.sum(picked) / 12  # <loss>


@jax.jit
def train_step(parameters, ids, targets):
    loss, gradients = jax.value_and_grad(loss_of)(parameters, ids, targets)  # <gradient>
    size = jnp.sqrt(sum(jnp.sum(each * each) for each in jax.tree.leaves(gradients)))  # <size>
    factor = jnp.minimum(1.0, 1.0 / (size + 1e-6))  # <clip>
    updated = jax.tree.map(
        lambda p, g: p - 0.1 * (g * factor + 0.01 * p),  # <update>
        parameters,
        gradients,
    )
    return updated, loss


parameters = {
    "tokens": matrix(VOCABULARY, WIDTH),
    "positions": matrix(TOKENS, WIDTH),
    "blocks": [block_parameters() for _ in range(2)],
    "norm": {"scale": jnp.ones(WIDTH), "bias": jnp.zeros(WIDTH)},
    "head": matrix(WIDTH, VOCABULARY),
}
for step in range(1):
    window = numbers.integers(0, VOCABULARY, (2, TOKENS + 1))  # <window>
    ids, targets = jnp.asarray(window[:, :-1]), jnp.asarray(window[:, 1:])  # <shift>
    parameters, loss = train_step(parameters, ids, targets)  # <call>
    print(f"step {step} loss {float(loss)!r}")
