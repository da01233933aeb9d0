"""Functions on the host run once, and a twin receives their results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import opdump
from tests.jax.capture.recording import recorded

X = np.arange(6, dtype=np.float32).reshape(2, 3)
LIKE_X = jax.ShapeDtypeStruct((2, 3), jnp.float32)


def test_a_pure_callback_runs_once_and_its_result_is_recorded(capfd: pytest.CaptureFixture[str]) -> None:
    calls = []

    def host(value: Any) -> Any:
        calls.append(value)
        return np.sin(value)

    def function(value: Any) -> Any:
        jax.debug.print("sum {s}", s=value.sum())
        return jax.pure_callback(host, LIKE_X, value) * 2

    compiled = jax.jit(function)
    with recorded() as recording:
        answer = compiled(X)
        jax.effects_barrier()
    assert len(calls) == 1
    assert capfd.readouterr().out == "sum 15.0\n"
    np.testing.assert_array_equal(answer, np.sin(X) * 2)
    (called,), (product,) = recording.ops(op_type="pure_callback"), recording.ops(op_type="mul")
    np.testing.assert_array_equal(recording.array(called, "input"), X)
    np.testing.assert_array_equal(recording.array(called), np.sin(X))
    np.testing.assert_array_equal(recording.array(product), answer)
    assert recording.recorder.warnings == []


def test_random_numbers_of_the_host_in_a_loop_are_those_of_the_program() -> None:
    drawn: list[float] = []

    def draw() -> Any:
        drawn.append(float(len(drawn) ** 2))
        return np.float32(drawn[-1])

    def trip(carry: Any, row: Any) -> Any:
        number = io_callback(draw, jax.ShapeDtypeStruct((), jnp.float32), ordered=True)
        return carry + number * row, number

    function = jax.jit(lambda v: (lax.scan(trip, jnp.zeros(3), v), v * 2), donate_argnums=0)
    with recorded() as recording:
        for _ in range(2):
            (carried, numbers), _ = function(jnp.asarray(X))
    assert drawn == [0, 1, 4, 9]
    np.testing.assert_array_equal(numbers, [4, 9])
    calls = recording.ops(op_type="io_callback")
    assert [recording.array(op).item() for op in calls] == drawn
    assert [op.step for op in calls] == [0, 0, 1, 1]
    np.testing.assert_array_equal(recording.array(recording.ops(op_type="add")[-1]), carried)
    assert recording.recorder.warnings == []


def test_a_callback_without_results_runs_once_and_what_it_read_is_recorded() -> None:
    seen = []

    def function(value: Any) -> Any:
        io_callback(lambda v: seen.append(float(v)), None, value.sum())
        return value + 1

    with recorded() as recording:
        jax.block_until_ready(jax.jit(function)(X))
        jax.effects_barrier()
    assert seen == [15]
    (called,) = recording.ops(op_type="io_callback")
    assert recording.array(called, "input").item() == 15


def test_a_callback_may_call_jax() -> None:
    sine = jax.jit(jnp.sin)

    def host(value: Any) -> Any:
        return np.asarray(sine(np.asarray(value)))

    function = jax.jit(lambda v: jax.pure_callback(host, LIKE_X, v) * 2)
    with recorded() as recording:
        answer = function(X)
    assert recording.counts()["pure_callback"] == 1
    np.testing.assert_array_equal(answer, recording.array(recording.ops(op_type="mul")[-1]))


def test_a_callback_that_is_called_in_two_places_leaves_only_the_arguments_and_results_of_the_function() -> None:
    calls = []

    def host(value: Any) -> Any:
        calls.append(value)
        return np.sin(value)

    def function(value: Any) -> Any:
        return jax.pure_callback(host, LIKE_X, value) + jax.pure_callback(host, LIKE_X, value * 2)

    plain = jax.jit(function)(X)
    calls.clear()
    compiled = jax.jit(function)
    with recorded() as recording:
        answer = compiled(X)
    assert len(calls) == 2
    np.testing.assert_array_equal(answer, plain)
    assert any("pure_callback" in text for text in recording.recorder.warnings)
    assert recording.recorder.tally.skipped["not observed"] == len(compiled.trace(X).jaxpr.eqns)


def test_an_error_of_a_callback_is_the_programs() -> None:
    def host(value: Any) -> Any:
        raise ValueError("out of data")

    function = jax.jit(lambda v: jax.pure_callback(host, LIKE_X, jnp.cos(v)) * 2)

    def run() -> None:
        jax.block_until_ready(function(X))

    with recorded() as recording:
        with pytest.raises(Exception, match="out of data"):
            run()
        jax.jit(jnp.sin)(X)
    assert recording.recorder.warnings == []
    assert recording.counts(2)["sin"] + recording.counts(0)["sin"] == 1


@pytest.mark.parametrize("is_pure", [True, False])
def test_the_traceback_in_the_message_of_a_callbacks_error_has_no_frames_of_opdump(is_pure: bool) -> None:
    def host(value: Any) -> Any:
        raise ValueError("wrong")

    def function(value: Any) -> Any:
        return jax.pure_callback(host, LIKE_X, value) if is_pure else io_callback(host, LIKE_X, value)

    with recorded(), pytest.raises(Exception, match="wrong") as caught:
        jax.block_until_ready(jax.jit(function)(X))
    assert "in host" in str(caught.value)
    assert str(Path(opdump.__file__).parent) not in str(caught.value)
