"""LeNet in JAX: opdump run -c data_dump.json lenet_jax.py."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import lenet_data
import optax

optimizer = optax.sgd(lenet_data.LEARNING_RATE, momentum=lenet_data.MOMENTUM)


def convolution(name: str, parameters: Any, x: jax.Array) -> jax.Array:
    with jax.named_scope(name):
        out = jax.lax.conv_general_dilated(x, parameters["weight"], window_strides=(1, 1), padding="VALID")
        return out + parameters["bias"][:, None, None]


def dense(name: str, parameters: Any, x: jax.Array) -> jax.Array:
    with jax.named_scope(name):
        return x @ parameters["weight"].T + parameters["bias"]


def pool(x: jax.Array) -> jax.Array:
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def lenet(network: Any, x: jax.Array) -> jax.Array:
    x = pool(jax.nn.relu(convolution("conv1", network["conv1"], x)))
    x = pool(jax.nn.relu(convolution("conv2", network["conv2"], x)))
    x = x.reshape(len(x), -1)
    x = jax.nn.relu(dense("fc1", network["fc1"], x))
    x = jax.nn.relu(dense("fc2", network["fc2"], x))
    return dense("fc3", network["fc3"], x)


def loss_of(network: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(lenet(network, images), labels).mean()


@jax.jit
def train(network: Any, moments: Any, images: jax.Array, labels: jax.Array) -> tuple[Any, Any, jax.Array]:
    loss, gradients = jax.value_and_grad(loss_of)(network, images, labels)
    updates, moments = optimizer.update(gradients, moments)
    return optax.apply_updates(network, updates), moments, loss


network = jax.tree.map(jnp.asarray, lenet_data.weights())
moments = optimizer.init(network)
for images, labels in lenet_data.batches():
    network, moments, loss = train(network, moments, images, labels)
    print(f"loss {loss:.6f}")
