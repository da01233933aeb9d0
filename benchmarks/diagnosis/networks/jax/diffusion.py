"""A diffusion block in JAX: a noise schedule, time embeddings, group norm, FiLM, a moving average of the parameters."""

import jax
import jax.numpy as jnp
import numpy as np

MODE = "jit"  # <mode>
WIDTH, GROUPS, STEPS = 8, 2, 20

numbers = np.random.default_rng(5)
signals = np.sin(numbers.normal(0, 1, (6, 12, 1)) + np.linspace(0, 3, 12)[:, None]).astype(np.float32)  # <signals>


def weights(*shape):
    return jnp.asarray(numbers.normal(0, 0.3, shape), jnp.float32)


def time_embedding(times):
    frequencies = jnp.exp(-jnp.arange(4) * (jnp.log(100.0) / 4))  # <frequencies>
    angles = times[:, None] * frequencies  # <angles>
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)  # <embedding>


def group_norm(x):
    batch, length, width = x.shape
    parts = x.reshape(batch, length, GROUPS, width // GROUPS)  # <parts>
    mean = parts.mean(axis=(1, 3), keepdims=True)  # <mean>
    variance = parts.var(axis=(1, 3), keepdims=True)  # <variance>
    return ((parts - mean) / jnp.sqrt(variance + 1e-5)).reshape(x.shape)  # <normalise>


def predicted(parameters, noisy, times):
    h = noisy @ parameters["in"]  # <in>
    film = jax.nn.silu(time_embedding(times) @ parameters["time"]) @ parameters["film"]  # <film>
    scale, shift = film[:, None, :WIDTH], film[:, None, WIDTH:]  # <halves>
    h = group_norm(h) * (1.0 + scale) + shift  # <modulate>
    h = h + jax.nn.softplus(h @ parameters["mid"])  # <residual>
    padded = jnp.pad(h, ((0, 0), (1, 1), (0, 0)))  # <pad>
    h = padded[:, :-2] + 0.5 * padded[:, 2:]  # <neighbours>
    return h @ parameters["out"]  # <out>


def loss_of(parameters, clean, noise, times):
    betas = jnp.linspace(1e-3, 0.1, STEPS)  # <betas>
    kept = jnp.cumprod(1.0 - betas)[times][:, None, None]  # <kept>
    noisy = jnp.sqrt(kept) * clean + jnp.sqrt(1.0 - kept) * noise  # <noisy>
    error = predicted(parameters, noisy, times) - noise  # <error>
    return jnp.mean(jnp.abs(error) + error**2)  # <loss>


def train_step(state, clean, noise, times):
    parameters, average = state
    loss, gradients = value_and_grad(parameters, clean, noise, times)  # <gradient>
    parameters = jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients)  # <update>
    average = jax.tree.map(lambda a, p: 0.95 * a + 0.05 * p, average, parameters)  # <average>
    return (parameters, average), loss


value_and_grad = jax.value_and_grad(loss_of)
if MODE == "grad":
    value_and_grad = jax.jit(value_and_grad)
if MODE == "jit":
    train_step = jax.jit(train_step)

parameters = {
    "in": weights(1, WIDTH),
    "time": weights(8, WIDTH),
    "film": weights(WIDTH, 2 * WIDTH),
    "mid": weights(WIDTH, WIDTH),
    "out": weights(WIDTH, 1),
}
state = (parameters, parameters)
for step in range(2):
    key = jax.random.fold_in(jax.random.key(7), step)  # <key>
    noise = jax.random.normal(key, (3, 12, 1))  # <noise>
    times = jnp.asarray([3 + step, 9, 17 - step])  # <times>
    state, loss = train_step(state, jnp.asarray(signals[3 * step : 3 * step + 3]), noise, times)  # <call>
    print(f"step {step} loss {float(loss)!r}")
