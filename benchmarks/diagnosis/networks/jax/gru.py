"""A recurrent language model in JAX: a GRU over time with `lax.scan`, tied output weights, Adam."""

import jax
import jax.numpy as jnp
import numpy as np

MODE = "jit"  # <mode>
WIDTH, TOKENS, VOCABULARY = 8, 5, 17

numbers = np.random.default_rng(3)
text = numbers.integers(0, VOCABULARY, 200)  # <text>


def weights(*shape):
    return jnp.asarray(numbers.normal(0, 0.4, shape), jnp.float32)


def cell(hidden, x, parameters):
    gates = jax.nn.sigmoid(x @ parameters["xg"] + hidden @ parameters["hg"] + parameters["bg"])  # <gates>
    reset, update = jnp.split(gates, 2, axis=-1)  # <split>
    candidate = jnp.tanh(x @ parameters["xc"] + (reset * hidden) @ parameters["hc"])  # <candidate>
    return update * hidden + (1.0 - update) * candidate  # <mix>


def loss_of(parameters, ids, targets):
    embedded = parameters["tokens"][ids] * 2.0  # <embed>

    def advance(hidden, x):
        hidden = cell(hidden, x, parameters)  # <advance>
        return hidden, hidden

    start = jnp.zeros((ids.shape[0], WIDTH))  # <start>
    _, states = jax.lax.scan(advance, start, embedded.swapaxes(0, 1))  # <scan>
    states = states.swapaxes(0, 1)  # <states>
    logits = states @ parameters["tokens"].T / jnp.sqrt(8.0)  # <logits>
    shifted = logits - jax.scipy.special.logsumexp(logits, axis=-1, keepdims=True)  # <normalise>
    wanted = jnp.take_along_axis(shifted, targets[..., None], axis=-1)  # <pick>
    return -jnp.mean(wanted)  # <loss>


def train_step(state, ids, targets):
    loss, gradients = value_and_grad(state["parameters"], ids, targets)  # <gradient>
    count = state["count"] + 1  # <count>
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["first"], gradients)  # <first>
    second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["second"], gradients)  # <second>
    rate = 0.02 * jnp.sqrt(1.0 - 0.99**count) / (1.0 - 0.9**count)  # <rate>
    parameters = jax.tree.map(
        lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-6),  # <update>
        state["parameters"],
        first,
        second,
    )
    return {"parameters": parameters, "first": first, "second": second, "count": count}, loss


value_and_grad = jax.value_and_grad(loss_of)
if MODE == "grad":
    value_and_grad = jax.jit(value_and_grad)
if MODE == "jit":
    train_step = jax.jit(train_step)

parameters = {
    "tokens": weights(VOCABULARY, WIDTH),
    "xg": weights(WIDTH, 2 * WIDTH),
    "hg": weights(WIDTH, 2 * WIDTH),
    "bg": jnp.zeros(2 * WIDTH),
    "xc": weights(WIDTH, WIDTH),
    "hc": weights(WIDTH, WIDTH),
}
zeros = jax.tree.map(jnp.zeros_like, parameters)
state = {"parameters": parameters, "first": zeros, "second": zeros, "count": jnp.float32(0)}
for step in range(2):
    window = np.stack([text[start : start + TOKENS + 1] for start in (3 + 20 * step, 60 + 20 * step)])  # <window>
    ids, targets = jnp.asarray(window[:, :-1]), jnp.asarray(window[:, 1:])  # <shift>
    state, loss = train_step(state, ids, targets)  # <call>
    print(f"step {step} loss {float(loss)!r}")
