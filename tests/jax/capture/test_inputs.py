"""The inputs of a program: only what it was given, or computed outside of every operator, has no maker, compiled or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import opdump

RNG = np.random.default_rng(0)
GIVEN: Final = {
    "x": RNG.normal(size=(4, 6)).astype(np.float32),
    "w": RNG.normal(size=(6, 6)).astype(np.float32),
    "table": RNG.normal(size=(5, 6)).astype(np.float32),
    "wanted": RNG.normal(size=(4, 6)).astype(np.float32),
    "ids": np.array([[0, 3, 1], [4, 4, 2]], np.int32),
}


def perceptron(x: Any, w: Any) -> Any:
    return jax.nn.gelu(x @ w) @ w.T


def views(x: Any, w: Any) -> Any:
    first, second = jnp.split(x @ w, 2, axis=1)
    return jnp.concatenate([first.T.reshape(-1), second[1:, ::2].ravel()])


def normalised(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def embedded(table: Any, ids: Any) -> Any:
    return table[ids].sum(1)


def recurrent(x: Any, w: Any) -> Any:
    def advance(state: Any, row: Any) -> Any:
        state = jnp.tanh(state @ w + row)
        return state, state

    return jax.lax.scan(advance, jnp.zeros(6), x)[1] * 2


def repeated(x: Any) -> Any:
    return jax.lax.while_loop(lambda each: each.max() > 1, lambda each: each * 0.5, x) + 1


def chosen(x: Any, w: Any) -> Any:
    return jax.lax.cond(x.sum() > 0, lambda a, b: a @ b, lambda a, b: a - b.sum(0), x, w)


def mapped(x: Any, w: Any) -> Any:
    return jax.vmap(lambda row: jax.nn.softmax(row @ w))(x)


def noisy(x: Any) -> Any:
    return x * jax.random.bernoulli(jax.random.key(3), 0.5, x.shape)


def trained(x: Any, w: Any, wanted: Any) -> Any:
    for _ in range(2):
        w = w - 0.1 * jax.grad(lambda each: ((jnp.tanh(x @ each) - wanted) ** 2).mean())(w)
    return w


def trained_with_moments(x: Any, w: Any, wanted: Any) -> Any:
    def loss(each: Any) -> Any:
        return ((x @ each - wanted) ** 2).mean()

    first, second = jnp.zeros_like(w), jnp.zeros_like(w)
    for _ in range(2):
        gradient = jax.grad(loss)(w)
        first, second = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient**2
        w = w - 0.1 * first / (jnp.sqrt(second) + 1e-8)
    return w


def trained_in_a_loop(x: Any, w: Any, wanted: Any) -> Any:
    def loss(each: Any) -> Any:
        states = jax.lax.scan(lambda state, row: (state + jnp.tanh(row @ each),) * 2, jnp.zeros(6), x)[1]
        return ((states - wanted) ** 2).mean()

    return w - 0.1 * jax.grad(loss)(w)


PROGRAMS: Final[dict[Callable[..., Any], list[str]]] = {
    perceptron: ["x", "w"],
    views: ["x", "w"],
    normalised: ["x"],
    embedded: ["table", "ids"],
    recurrent: ["x", "w"],
    repeated: ["x"],
    chosen: ["x", "w"],
    mapped: ["x", "w"],
    noisy: ["x"],
    trained: ["x", "w", "wanted"],
    trained_with_moments: ["x", "w", "wanted"],
    trained_in_a_loop: ["x", "w", "wanted"],
}


def inputs(path: Path) -> set[str]:
    """The values that no operator of a dump made: what the program was given, by its elements, and `?` for others."""
    dump = opdump.open(path)
    made: set[str] = set()
    found: set[str] = set()
    for step in dump.steps:
        for each in dump.ops(step=step, rank=0):
            if each.op.kernel != "jax::jit":
                read = (each for each in each.inputs.values() if each.source.rpartition(":")[0] not in made)
                found |= {name_of(record.numpy()) for record in read}
            made.add(each.op.op_name)
    return found


def name_of(values: np.ndarray[Any, Any]) -> str:
    """The data that have these elements, whole or as a row, which a loop reads."""
    names = (
        name
        for name, given in GIVEN.items()
        if any(np.array_equal(values, each) for each in (given, *(given if values.ndim == 1 else ())))
    )
    return next(names, "?")


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "uncompiled"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_only_what_was_given_is_an_input_of_the_program(
    program: Callable[..., Any], compiled: bool, tmp_path: Path
) -> None:
    given = [jnp.asarray(GIVEN[name]) for name in PROGRAMS[program]]
    run = jax.jit(program) if compiled else program
    with opdump.capture(path=tmp_path / "dump", saved_data="full", steps="manual"):
        jax.block_until_ready(run(*given))
    assert inputs(tmp_path / "dump") == set(PROGRAMS[program])
