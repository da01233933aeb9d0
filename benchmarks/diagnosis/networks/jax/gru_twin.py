"""The recurrent model of gru.py, refactored: gates apart, a candidate by einsum, flat optimizer states, time as the first axis to the end."""

import jax
import jax.numpy as jnp
import numpy as np

MODE = "jit"  # <mode>
N, T, V = 8, 5, 17

drawn = np.random.default_rng(3)
stream = drawn.integers(0, V, 200)  # <text>


def uniform(*shape):
    return jnp.asarray(drawn.normal(0, 0.4, shape), jnp.float32)


def advance(weights, state, row):
    def gate(start):
        part = slice(start, start + N)
        total = row @ weights["input"][:, part] + weights["offset"][part] + state @ weights["state"][:, part]  # <total>
        return 1.0 / (1.0 + jnp.exp(-total))

    keep = gate(N)  # <gates>
    reset = gate(0)  # <split>
    remembered = (reset * state) @ weights["memory"]  # <candidate>
    proposal = jnp.tanh(jnp.einsum("bi,io->bo", row, weights["proposal"]) + remembered)
    return proposal + keep * (state - proposal)  # <mix>


def cost(weights, given, wanted):
    rows = 2.0 * jnp.take(weights["table"], given.T, axis=0)  # <embed>

    def step(state, row):
        state = advance(weights, state, row)  # <advance>
        return state, state

    begin = jnp.zeros((given.shape[0], N))  # <start>
    states = jax.lax.scan(step, begin, rows)[1]  # <scan>
    scores = jnp.einsum("tbn,vn->tbv", states, weights["table"]) / jnp.sqrt(8.0)  # <logits>
    logs = jax.nn.log_softmax(scores)  # <normalise>
    return -jnp.take_along_axis(logs, wanted.T[..., None], axis=-1).mean()  # <pick>


def train(weights, moments, count, given, wanted):
    value, slopes = differentiate(weights, given, wanted)  # <gradient>
    count = 1 + count  # <count>
    one = 1.0 - 0.9**count
    rate = 0.02 * jnp.sqrt(1.0 - 0.99**count) / one  # <rate>
    new_weights, new_moments = {}, {}
    for name, slope in slopes.items():
        first = moments[name][0] + 0.1 * (slope - moments[name][0])  # <first>
        second = 0.99 * moments[name][1] + 0.01 * jnp.square(slope)  # <second>
        new_moments[name] = first, second
        new_weights[name] = weights[name] - rate * first / (1e-6 + jnp.sqrt(second))  # <update>
    return value, new_weights, new_moments, count


differentiate = jax.value_and_grad(cost)
if MODE == "grad":
    differentiate = jax.jit(differentiate)
if MODE == "jit":
    train = jax.jit(train)

weights = {
    "table": uniform(V, N),
    "input": uniform(N, 2 * N),
    "state": uniform(N, 2 * N),
    "offset": jnp.zeros(2 * N),
    "proposal": uniform(N, N),
    "memory": uniform(N, N),
}
moments = {name: (jnp.zeros_like(each), jnp.zeros_like(each)) for name, each in weights.items()}
count = jnp.float32(0)
for number in range(2):
    rows = np.stack([stream[start : start + T + 1] for start in (3 + 20 * number, 60 + 20 * number)])  # <window>
    given, wanted = jnp.asarray(rows[:, :-1]), jnp.asarray(rows[:, 1:])  # <shift>
    value, weights, moments, count = train(weights, moments, count, given, wanted)  # <call>
    print(f"step {number} loss {float(value)!r}")
