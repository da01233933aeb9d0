"""A convolutional classifier in JAX: batch norm, a residual, max pooling, SGD. Images have their channels last."""

import jax
import jax.numpy as jnp
import numpy as np

CHANNELS, CLASSES = 6, 5

numbers = np.random.default_rng(2)
images = numbers.normal(0.2, 1.0, (8, 8, 8, 3)).astype(np.float32)  # <images>
labels = numbers.integers(0, CLASSES, 8)  # <labels>


def kernel(size, given, made):
    return jnp.asarray(numbers.normal(0, 0.25, (size, size, given, made)), jnp.float32)


def block_weights(given):
    norm = {"scale": jnp.ones(CHANNELS), "bias": jnp.zeros(CHANNELS)}
    return {"conv": kernel(3, given, CHANNELS), "norm": norm}


def block(x, w):
    layout = ("NHWC", "HWIO", "NHWC")
    x = jax.lax.conv_general_dilated(x, w["conv"], (1, 1), "SAME", dimension_numbers=layout)  # <conv>
    mean, variance = jnp.mean(x, (0, 1, 2)), jnp.var(x, (0, 1, 2))  # <moments>
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * w["norm"]["scale"] + w["norm"]["bias"]  # <norm>


def loss_of(w, x, wanted):
    x = jax.nn.relu(block(x, w["first"]))  # <relu1>
    x = jax.nn.relu(x + block(x, w["second"]))  # <residual>
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")  # <pool>
    x = jnp.mean(x, axis=(1, 2))  # <average>
    logits = x @ w["head"] + w["offset"]  # <head>
    targets = jax.nn.one_hot(wanted, CLASSES) * 0.9 + 0.1 / CLASSES  # <smooth>
    return -jnp.mean(jnp.sum(targets * jax.nn.log_softmax(logits), axis=-1))  # <loss>


@jax.jit
def train(w, x, wanted):
    loss, gradients = jax.value_and_grad(loss_of)(w, x, wanted)  # <gradient>
    return jax.tree.map(lambda p, g: p - 0.05 * g, w, gradients), loss  # <update>


w = {"first": block_weights(3), "second": block_weights(CHANNELS)}
w |= {"head": kernel(1, CHANNELS, CLASSES)[0, 0], "offset": jnp.zeros(CLASSES)}
for step in range(2):
    part = slice(4 * step, 4 * step + 4)  # <part>
    w, loss = train(w, jnp.asarray(images[part]), jnp.asarray(labels[part]))  # <call>
    print(f"step {step} loss {float(loss)!r}")
