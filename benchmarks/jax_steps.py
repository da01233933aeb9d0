"""The cost of a capture of JAX training: `python -m benchmarks.jax_steps`, in an environment with JAX, flax and optax (`make test-jax` sets up
.venv-jax).

Prints ratios to the plain step, measured in one process: a few plain steps, then steps under a capture that records every fourth, then plain
steps again. A recorded step includes statistics of everything and its files, which are written when the next step begins.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen

import opdump

ROUNDS = 10


class Residual(linen.Module):
    features: int

    @linen.compact
    def __call__(self, x: Any) -> Any:
        y = linen.Conv(self.features, (3, 3), use_bias=False)(x)
        y = linen.relu(linen.BatchNorm(use_running_average=False)(y))
        y = linen.BatchNorm(use_running_average=False)(linen.Conv(self.features, (3, 3), use_bias=False)(y))
        return linen.relu(y + (x if x.shape == y.shape else linen.Conv(self.features, (1, 1), use_bias=False)(x)))


class ResNet(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = linen.Conv(16, (3, 3), use_bias=False)(x)
        for features in (16, 16, 32, 32, 64, 64):
            x = Residual(features)(x)
        return linen.Dense(10)(x.mean((1, 2)))


class Block(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        h = linen.LayerNorm()(x)
        x = x + linen.MultiHeadDotProductAttention(4)(h, h, mask=linen.make_causal_mask(jnp.ones(x.shape[:2])))
        return x + linen.Dense(128)(linen.gelu(linen.Dense(512)(linen.LayerNorm()(x))))


class GPT(linen.Module):
    @linen.compact
    def __call__(self, tokens: Any) -> Any:
        x = linen.Embed(256, 128)(tokens) + linen.Embed(64, 128)(jnp.arange(64))
        for _ in range(4):
            x = Block()(x)
        return linen.Dense(256)(linen.LayerNorm()(x))


def training(model: Any, optimizer: Any, inputs: Any, labels: Any) -> tuple[Callable[[Any], Any], Any]:
    variables = jax.jit(model.init)(jax.random.key(0), inputs)
    rest = {name: value for name, value in variables.items() if name != "params"}

    def step(state: Any) -> Any:
        params, rest, moments = state

        def loss(params: Any) -> Any:
            logits, after = model.apply({"params": params, **rest}, inputs, mutable=list(rest))
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), after

        (_, after), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        updates, moments = optimizer.update(gradients, moments, params)
        return optax.apply_updates(params, updates), after, moments

    return step, (variables["params"], rest, optimizer.init(variables["params"]))


def timed(function: Any, state: Any, count: int) -> tuple[Any, list[float]]:
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        state = jax.block_until_ready(function(state))
        times.append(time.perf_counter() - begun)
    return state, times


def measure(name: str, step: Callable[[Any], Any], state: Any) -> None:
    function = jax.jit(step, donate_argnums=0)
    state, _ = timed(function, state, 2)
    state, plain = timed(function, state, ROUNDS)
    wanted = "|".join(str(number) for number in range(0, 4 * ROUNDS, 4))
    with (
        tempfile.TemporaryDirectory() as place,
        opdump.capture(path=f"{place}/dump", saved_data="statistic", iteration=wanted, framework="jax") as dump,
    ):
        state, times = timed(function, state, 4 * ROUNDS)
        operators = dump.operators // ROUNDS
    state, again = timed(function, state, ROUNDS)
    usual = statistics.median(plain + again[1:])
    not_dumped = statistics.median(times[2::4] + times[3::4])
    dumped = statistics.median(one + after - not_dumped for one, after in zip(times[4::4], times[5::4], strict=True))
    print(
        f"{name:8}{usual * 1e3:10.1f}{not_dumped / usual:12.2f}{dumped / usual:10.2f}{times[0]:16.1f}{operators:12}",
        flush=True,
    )


def main() -> None:
    random = np.random.default_rng(0)
    images = jnp.asarray(random.standard_normal((8, 32, 32, 3)), jnp.float32)
    tokens = jnp.asarray(random.integers(0, 256, (4, 64)))
    print(f"{'':8}{'plain, ms':>10}{'not dumped':>12}{'dumped':>10}{'first dump, s':>16}{'operators':>12}")
    measure("ResNet", *training(ResNet(), optax.sgd(0.1, momentum=0.9), images, jnp.asarray(random.integers(0, 10, 8))))
    measure("GPT", *training(GPT(), optax.adamw(1e-3), tokens, jnp.asarray(random.integers(0, 256, (4, 64)))))


if __name__ == "__main__":
    main()
