"""Calls that fail, and the operator that is told to be the cause."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.jax.capture.recording import recorded

X = np.ones(4, np.float32)


def makes_nan(values: Any) -> Any:
    """Of values below 3."""
    return (jnp.log(jnp.abs(values) - 3) * 2).sum()


@contextmanager
def debug_nans() -> Iterator[None]:
    jax.config.update("jax_debug_nans", True)
    try:
        yield
    finally:
        jax.config.update("jax_debug_nans", False)


@pytest.mark.parametrize("times", [1, 3])
def test_the_operator_that_made_a_nan_is_named_and_not_the_call_around_it(times: int) -> None:
    function = jax.jit(makes_nan)
    with recorded(saved_data="statistic") as recording:
        for number in range(times):
            function(X if number == times - 1 else 5 * X)
    verdict = recording.recorder.verdict
    assert (verdict.kind, verdict.op_name, verdict.step) == ("nan", "Default/log-op0", times - 1)


def test_under_debug_nans_the_operators_are_there_before_the_program_fails() -> None:
    function = jax.jit(makes_nan)
    with debug_nans():
        with pytest.raises(FloatingPointError) as plain:
            function(X)
        with recorded(saved_data="statistic") as recording, pytest.raises(FloatingPointError) as captured:
            function(X)
    assert str(captured.value) == str(plain.value)
    assert type(captured.value) is type(plain.value)
    assert recording.recorder.verdict.op_name == "Default/log-op0"
    assert recording.counts() == {"abs": 1, "sub": 1, "log": 1, "mul": 1, "reduce_sum": 1}
    assert recording.recorder.warnings == []


def test_a_step_that_goes_well_under_debug_nans_is_recorded_as_ever() -> None:
    function = jax.jit(lambda v: jnp.where(v > 0, jnp.log(v), 0.0))
    with debug_nans(), recorded() as recording:
        answer = function(np.array([-1.0, 1.0], np.float32))
    assert np.isfinite(answer).all()
    (log,) = recording.ops(op_type="log")
    assert np.isnan(recording.array(log)[0])
    assert recording.counts()["select_n"] == 1


def test_an_error_while_the_function_runs_comes_behind_its_operators() -> None:
    def fails(value: Any) -> Any:
        raise ValueError("out of data")

    def function(values: Any) -> Any:
        jax.debug.callback(fails, values.sum())
        return jnp.sin(values) * 2

    def run(compiled: Any) -> None:
        jax.block_until_ready(compiled(X))
        jax.effects_barrier()

    with recorded() as recording, pytest.raises(Exception, match="out of data"):
        run(jax.jit(function))
    assert recording.counts()["sin"] == 1


def test_exception_mode_files_the_call_that_failed() -> None:
    function = jax.jit(makes_nan)
    with debug_nans(), recorded(captures="exception") as recording, pytest.raises(FloatingPointError):
        function(X)
    (call,) = recording.ops(op_type="jit")
    np.testing.assert_array_equal(recording.array(call, "input"), X)
