"""Small trainings with the libraries on JAX: each function returns a step, its first state, and a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Step = Callable[..., tuple[Any, Any]]
"""step(state, *batch) -> (state, loss)"""
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.standard_normal((4, 8, 8, 3)).astype(np.float32)
LABELS = RANDOM.integers(0, 10, 4)
TOKENS = RANDOM.integers(0, 32, (2, 16))


def cross_entropy(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


class ResNet(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = linen.Conv(8, (3, 3), use_bias=False)(x)
        for features in (8,):
            y = linen.BatchNorm(use_running_average=False)(linen.Conv(features, (3, 3), use_bias=False)(x))
            y = linen.Conv(features, (3, 3), use_bias=False)(linen.relu(y))
            x = linen.relu(y + (x if x.shape == y.shape else linen.Conv(features, (1, 1))(x)))
        return linen.Dense(10)(x.mean((1, 2)))


def resnet() -> tuple[Step, Any, tuple[Any, ...]]:
    model, optimizer = ResNet(), optax.sgd(0.1, momentum=0.9)
    variables = jax.jit(model.init)(jax.random.key(0), IMAGES)

    def step(state: Any, images: Any, labels: Any) -> Any:
        params, stats, moments = state

        def loss(params: Any) -> Any:
            logits, updates = model.apply({"params": params, "batch_stats": stats}, images, mutable=["batch_stats"])
            return cross_entropy(logits, labels), updates["batch_stats"]

        (value, after), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        updates, moments = optimizer.update(gradients, moments, params)
        return (optax.apply_updates(params, updates), after, moments), value

    params = variables["params"]
    return step, (params, variables["batch_stats"], optimizer.init(params)), (IMAGES, LABELS)


class Block(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        h = linen.LayerNorm()(x)
        mask = linen.make_causal_mask(jnp.ones(x.shape[:2]))
        x = x + linen.MultiHeadDotProductAttention(2)(h, h, mask=mask)
        return x + linen.Dense(16)(linen.gelu(linen.Dense(32)(linen.LayerNorm()(x))))


class GPT(linen.Module):
    @linen.compact
    def __call__(self, tokens: Any) -> Any:
        x = linen.Embed(32, 16)(tokens) + linen.Embed(16, 16)(jnp.arange(tokens.shape[1]))
        for _ in range(1):
            x = linen.remat(Block)()(x)
        x = linen.Dropout(0.1, deterministic=False)(x)
        return linen.Dense(32)(linen.LayerNorm()(x))


def gpt() -> tuple[Step, Any, tuple[Any, ...]]:
    model, optimizer = GPT(), optax.adam(1e-3)
    key = jax.random.key(1)
    params = jax.jit(model.init)({"params": key, "dropout": key}, TOKENS)

    def step(state: Any, tokens: Any) -> Any:
        params, moments, key = state
        key, dropout = jax.random.split(key)

        def loss(params: Any) -> Any:
            logits = model.apply(params, tokens[:, :-1], rngs={"dropout": dropout})
            return cross_entropy(logits, tokens[:, 1:])

        value, gradients = jax.value_and_grad(loss)(params)
        updates, moments = optimizer.update(gradients, moments, params)
        return (optax.apply_updates(params, updates), moments, key), value

    return step, (params, optimizer.init(params), key), (TOKENS,)


def equinox_mlp() -> tuple[Step, Any, tuple[Any, ...]]:
    model, optimizer = eqx.nn.MLP(3, 10, 16, 2, key=jax.random.key(2)), optax.adam(1e-2)
    params, static = eqx.partition(model, eqx.is_array)
    rows = IMAGES.reshape(-1, 3)[:4]

    def step(state: Any, rows: Any, labels: Any) -> Any:
        params, moments = state

        def loss(params: Any) -> Any:
            return cross_entropy(jax.vmap(eqx.combine(params, static))(rows), labels)

        value, gradients = jax.value_and_grad(loss)(params)
        updates, moments = optimizer.update(gradients, moments)
        return (eqx.apply_updates(params, updates), moments), value

    return step, (params, optimizer.init(params)), (rows, LABELS)


class Network(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(192, 16, rngs=rngs)
        self.second = nnx.Linear(16, 10, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.second(nnx.relu(self.first(x)))


def nnx_network() -> tuple[Step, Any, tuple[Any, ...]]:
    graph, state = nnx.split(Network(nnx.Rngs(3)))

    def step(state: Any, images: Any, labels: Any) -> Any:
        def loss(state: Any) -> Any:
            return cross_entropy(nnx.merge(graph, state)(images.reshape(len(images), -1)), labels)

        value, gradients = jax.value_and_grad(loss)(state)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, gradients), value

    return step, state, (IMAGES, LABELS)


def recurrent() -> tuple[Step, Any, tuple[Any, ...]]:
    keys = jax.random.split(jax.random.key(4), 3)
    weights = {
        "input": jax.random.normal(keys[0], (8, 16)) * 0.3,
        "state": jax.random.normal(keys[1], (16, 16)) * 0.3,
        "output": jax.random.normal(keys[2], (16, 10)),
    }
    rows = np.moveaxis(IMAGES[..., 0], 1, 0)

    def step(weights: Any, rows: Any, labels: Any) -> Any:
        def loss(weights: Any) -> Any:
            def trip(carry: Any, row: Any) -> Any:
                return jnp.tanh(row @ weights["input"] + carry @ weights["state"]), None

            last, _ = jax.lax.scan(trip, jnp.zeros((rows.shape[1], 16)), rows)
            return cross_entropy(last @ weights["output"], labels)

        value, gradients = jax.value_and_grad(loss)(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value

    return step, weights, (rows, LABELS)


def sharded() -> tuple[Step, Any, tuple[Any, ...]]:
    mesh = Mesh(np.array(jax.devices()[:2]), ("batch",))
    weights = jax.random.normal(jax.random.key(5), (192, 10)) * 0.1
    images = jax.device_put(IMAGES.reshape(4, -1), NamedSharding(mesh, PartitionSpec("batch")))
    labels = jax.device_put(LABELS, NamedSharding(mesh, PartitionSpec("batch")))

    def step(weights: Any, images: Any, labels: Any) -> Any:
        value, gradient = jax.value_and_grad(lambda w: cross_entropy(images @ w, labels))(weights)
        return weights - 0.1 * gradient, value

    return step, jax.device_put(weights, NamedSharding(mesh, PartitionSpec())), (images, labels)


TRAININGS = {each.__name__: each for each in (resnet, gpt, equinox_mlp, nnx_network, recurrent, sharded)}
