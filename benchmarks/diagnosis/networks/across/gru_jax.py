"""A recurrent classifier in JAX: a GRU over time, written by hand, with momentum."""

import jax
import jax.numpy as jnp
import numpy as np

WIDTH, TOKENS, VOCABULARY, BATCH = 8, 4, 17, 3

numbers = np.random.default_rng(3)


def matrix(*shape):
    return jnp.asarray(numbers.normal(0, 0.4, shape), jnp.float32)


def cell(h, x, w):
    gates = jax.nn.sigmoid(x @ w["x_gates"] + h @ w["h_gates"] + w["bias"])  # <gates>
    reset, update = jnp.split(gates, 2, axis=-1)  # <split>
    new = jnp.tanh(x @ w["x_new"] + (reset * h) @ w["h_new"])  # <new>
    return update * h + (1.0 - update) * new  # <mix>


def loss_of(w, ids, targets):
    x = w["tokens"][ids] * 2.0  # <embed>
    h, states = jnp.zeros((BATCH, WIDTH)), []  # <start>
    for step in range(TOKENS):
        h = cell(h, x[:, step], w)  # <advance>
        states.append(h)
    logits = jnp.stack(states, axis=1) @ w["head"] / jnp.sqrt(8.0)  # <head>
    logs = jax.nn.log_softmax(logits)  # <log-softmax>
    return -jnp.mean(jnp.take_along_axis(logs, targets[..., None], axis=-1))  # <loss>


@jax.jit
def train(w, momenta, ids, targets):
    loss, gradients = jax.value_and_grad(loss_of)(w, ids, targets)  # <gradient>
    momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, gradients)  # <momentum>
    w = jax.tree.map(lambda p, m: p - 0.1 * m, w, momenta)  # <update>
    return w, momenta, loss


names = ("tokens", "x_gates", "h_gates", "bias", "x_new", "h_new", "head")
sizes = ((VOCABULARY, WIDTH), *[(WIDTH, 2 * WIDTH)] * 2, (2 * WIDTH,), *[(WIDTH, WIDTH)] * 2, (WIDTH, VOCABULARY))
w = {name: matrix(*size) for name, size in zip(names, sizes)}
momenta = jax.tree.map(jnp.zeros_like, w)
for step in range(2):
    window = numbers.integers(0, VOCABULARY, (BATCH, TOKENS + 1))
    ids, targets = jnp.asarray(window[:, :-1]), jnp.asarray(window[:, 1:])  # <shift>
    w, momenta, loss = train(w, momenta, ids, targets)  # <call>
    print(f"step {step} loss {float(loss)!r}")
