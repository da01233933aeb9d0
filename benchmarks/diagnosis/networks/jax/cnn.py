"""A convolutional classifier in JAX: two blocks with batch norm and running statistics, a residual, SGD with momentum."""

import jax
import jax.numpy as jnp
import numpy as np

MODE = "jit"  # <mode>
CHANNELS, CLASSES = 6, 5

numbers = np.random.default_rng(2)
images = numbers.normal(0.2, 1.0, (8, 8, 8, 3)).astype(np.float32)  # <images>
labels = numbers.integers(0, CLASSES, 8)  # <labels>


def weights(*shape):
    return jnp.asarray(numbers.normal(0, 0.25, shape), jnp.float32)


def convolved(x, kernel, stride=1):
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=layout)  # <conv>


def batch_norm(x, norm, running):
    mean = jnp.mean(x, axis=(0, 1, 2))  # <mean>
    variance = jnp.var(x, axis=(0, 1, 2))  # <variance>
    running = {
        "mean": 0.9 * running["mean"] + 0.1 * mean,  # <running-mean>
        "variance": 0.9 * running["variance"] + 0.1 * variance,  # <running-variance>
    }
    y = (x - mean) / jnp.sqrt(variance + 1e-5)  # <normalise>
    return y * norm["scale"] + norm["bias"], running  # <affine>


def loss_of(parameters, running, x, wanted):
    h = convolved(x, parameters["stem"])  # <stem>
    h, first = batch_norm(h, parameters["norm1"], running["norm1"])  # <norm1>
    h = jax.nn.relu(h)  # <relu1>
    r = convolved(h, parameters["conv"])  # <second>
    r, second = batch_norm(r, parameters["norm2"], running["norm2"])  # <norm2>
    h = jax.nn.relu(h + r)  # <residual>
    h = jax.lax.reduce_window(h, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")  # <pool>
    pooled = jnp.mean(h, axis=(1, 2))  # <average>
    logits = pooled @ parameters["head"] + parameters["bias"]  # <head>
    logs = jax.nn.log_softmax(logits)  # <log-softmax>
    targets = jax.nn.one_hot(wanted, CLASSES) * 0.9 + 0.1 / CLASSES  # <smooth>
    loss = -jnp.mean(jnp.sum(targets * logs, axis=-1))  # <loss>
    return loss, {"norm1": first, "norm2": second}


def train_step(state, x, wanted):
    parameters, momentum, running = state["parameters"], state["momentum"], state["running"]
    (loss, running), gradients = value_and_grad(parameters, running, x, wanted)  # <gradient>
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)  # <momentum>
    parameters = jax.tree.map(lambda p, m: p - 0.05 * m, parameters, momentum)  # <update>
    return {"parameters": parameters, "momentum": momentum, "running": running}, loss


value_and_grad = jax.value_and_grad(loss_of, has_aux=True)
if MODE == "grad":
    value_and_grad = jax.jit(value_and_grad)
if MODE == "jit":
    train_step = jax.jit(train_step)

parameters = {
    "stem": weights(3, 3, 3, CHANNELS),
    "conv": weights(3, 3, CHANNELS, CHANNELS),
    "norm1": {"scale": jnp.ones(CHANNELS), "bias": jnp.zeros(CHANNELS)},
    "norm2": {"scale": jnp.ones(CHANNELS), "bias": jnp.zeros(CHANNELS)},
    "head": weights(CHANNELS, CLASSES),
    "bias": jnp.zeros(CLASSES),
}
empty = {"mean": jnp.zeros(CHANNELS), "variance": jnp.ones(CHANNELS)}
state = {
    "parameters": parameters,
    "momentum": jax.tree.map(jnp.zeros_like, parameters),
    "running": {"norm1": empty, "norm2": empty},
}
for step in range(2):
    part = slice(4 * step, 4 * step + 4)  # <part>
    state, loss = train_step(state, jnp.asarray(images[part]), jnp.asarray(labels[part]))  # <call>
    print(f"step {step} loss {float(loss)!r}")
