"""A mixture of experts in JAX: top-2 routing, experts under `vmap`, a balancing loss, RMS norm, SGD with clipped values."""

import jax
import jax.numpy as jnp
import numpy as np

MODE = "jit"  # <mode>
WIDTH, EXPERTS, ROWS = 8, 4, 10

numbers = np.random.default_rng(4)
inputs = numbers.normal(0, 1, (2 * ROWS, WIDTH)).astype(np.float32)  # <inputs>
outputs = np.tanh(inputs[:, ::-1] * 1.5).astype(np.float32)  # <outputs>


def weights(*shape):
    return jnp.asarray(numbers.normal(0, 0.4, shape), jnp.float32)


def rms_norm(x, scale):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale  # <norm>


def expert(x, up, gate, down):
    return (jax.nn.silu(x @ gate) * (x @ up)) @ down  # <expert>


def mixture(x, parameters):
    scores = x @ parameters["router"]  # <router>
    odds = jax.nn.softmax(scores, axis=-1)  # <odds>
    best, chosen = jax.lax.top_k(odds, 2)  # <top>
    best = best / jnp.sum(best, axis=-1, keepdims=True)  # <renormalise>
    share = jnp.sum(jax.nn.one_hot(chosen, EXPERTS) * best[..., None], axis=1)  # <share>
    each = jax.vmap(expert, (None, 0, 0, 0))(x, parameters["up"], parameters["gate"], parameters["down"])  # <experts>
    mixed = jnp.einsum("ne,end->nd", share, each)  # <mixed>
    load = jnp.mean(jax.nn.one_hot(chosen[:, 0], EXPERTS), axis=0)  # <load>
    return mixed, EXPERTS * jnp.sum(load * jnp.mean(odds, axis=0))  # <balance>


def loss_of(parameters, x, wanted):
    h = rms_norm(x @ parameters["first"], parameters["scale"])  # <first>
    mixed, balance = mixture(h, parameters)  # <mixture>
    found = (h + mixed) @ parameters["last"]  # <residual>
    error = found - wanted  # <error>
    return jnp.mean(error**2) + 0.01 * balance  # <loss>


def train_step(parameters, x, wanted):
    loss, gradients = value_and_grad(parameters, x, wanted)  # <gradient>
    bounded = jax.tree.map(lambda g: jnp.clip(g, -0.2, 0.2), gradients)  # <bound>
    return jax.tree.map(lambda p, g: p - 0.3 * g, parameters, bounded), loss  # <update>


value_and_grad = jax.value_and_grad(loss_of)
if MODE == "grad":
    value_and_grad = jax.jit(value_and_grad)
if MODE == "jit":
    train_step = jax.jit(train_step)

parameters = {
    "first": weights(WIDTH, WIDTH),
    "scale": jnp.ones(WIDTH),
    "router": weights(WIDTH, EXPERTS),
    "up": weights(EXPERTS, WIDTH, 2 * WIDTH),
    "gate": weights(EXPERTS, WIDTH, 2 * WIDTH),
    "down": weights(EXPERTS, 2 * WIDTH, WIDTH),
    "last": weights(WIDTH, WIDTH),
}
for step in range(2):
    rows = slice(ROWS * step, ROWS * step + ROWS)  # <rows>
    parameters, loss = train_step(parameters, jnp.asarray(inputs[rows]), jnp.asarray(outputs[rows]))  # <call>
    print(f"step {step} loss {float(loss)!r}")
