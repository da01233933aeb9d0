"""Calls that fail, the operator that is named as the cause, and names in a configuration that match nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import opdump
from opdump.adapters.graph_runtime import GraphRun
from opdump.adapters.jax import walk
from opdump.adapters.jax.capture import Capture
from opdump.adapters.jax.twin import Emitter
from tests.jax.capture.recording import recorded

X = np.ones(4, np.float32)


def makes_nan(values: Any) -> Any:
    """Returns NaN for values below 3."""
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


def _sines(value: Any) -> Any:
    scaled = jnp.cos(value) * 2
    carried, _ = jax.lax.scan(lambda carry, _: (jnp.sin(carry), None), scaled, None, length=2)
    return jnp.tanh(carried).sum()


def _fails_for(kind: str, real: Any) -> Any:
    def failing(*arguments: Any) -> Any:
        assert all(getattr(each, "op_type", "") != kind for each in arguments), "literal"
        return real(*arguments)

    return failing


@pytest.mark.parametrize("saved_data", ["statistic", "full"])
@pytest.mark.parametrize("kind", ["cos", "sin", "tanh"])
@pytest.mark.parametrize("part", ["node", "tensors", "levels"])
def test_a_defect_at_one_operator_loses_that_operator_and_not_the_dump(
    part: str, kind: str, saved_data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The defect occurs while the twin is traced, while its values are read, or while a body is followed."""
    if part == "node":
        monkeypatch.setattr(walk, "_node", _fails_for(kind, walk._node))
    elif part == "tensors":
        monkeypatch.setattr(GraphRun, "emit", _fails_for(kind, GraphRun.emit))
        monkeypatch.setattr(GraphRun, "takes", lambda *_: False)
    else:
        monkeypatch.setattr(Emitter, "_part", _raises)
        kind = "sin"
    expected = [float(jax.jit(_sines)(X * step)) for step in range(3)]
    function = jax.jit(_sines)
    with recorded(saved_data=saved_data) as recording:
        assert [float(function(X * step)) for step in range(3)] == expected
    recorder = recording.recorder
    assert recorder.failure is None
    assert not recorder.is_over
    found = Counter(op.op_type for op in recording.ops(graph_id=1))
    assert found[kind] == 0
    assert {"cos", "sin", "tanh", "reduce_sum", "jit"} - {kind} <= found.keys()
    assert found["jit"] == found["reduce_sum"] == 3
    told = [*recorder.warnings, *recorder.lost.in_words()]
    assert any("AssertionError: literal" in text for text in told), told


def _raises(*_: Any) -> None:
    raise AssertionError("literal")


def test_a_defect_before_the_call_leaves_the_program_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Capture, "_given", _raises)
    function = jax.jit(_sines)
    with recorded() as recording:
        answers = [float(function(X)), float(jnp.sum(X) + 1)]
    assert answers == [float(jax.jit(_sines)(X)), 5.0]
    assert recording.recorder.failure is None
    assert any("_sines" in text for text in recording.recorder.lost.in_words())


def _maxima(values: Any) -> Any:
    scores = jnp.where(jnp.arange(4) < 3, values, -jnp.inf)
    return (
        jax.nn.softmax(scores),
        jax.scipy.special.logsumexp(values),
        jnp.max(values, initial=-jnp.inf),
        jnp.min(values),
    )


@pytest.mark.parametrize("is_compiled", [False, True])
def test_neutral_elements_of_maxima_and_masks_are_no_infinities_and_a_real_one_is(*, is_compiled: bool) -> None:
    function = jax.jit(_maxima) if is_compiled else _maxima
    with recorded(saved_data="statistic", manual=True) as recording:
        function(X)
        function(X * 2)
    assert recording.recorder.verdict.kind == "none"
    with recorded(saved_data="statistic", manual=True) as recording:
        function(X)
        jnp.log1p(-X)
    verdict = recording.recorder.verdict
    assert (verdict.kind, verdict.op_name) == ("infinity", "Default/log1p-op0")


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (
            {"layer": ["sin-op0", "Default/mul-op0"]},
            "dump_list.layer: 'sin-op0' is not an operator that ran; nearest: 'Default/sin-op0'",
        ),
        ({"model_name": "step"}, "dump_list.model_name: no model is called 'step'; there are none"),
        (
            {"optype_blacklist": [{"name": "cosine", "pos": ["input0"]}]},
            "dump_list.optype_blacklist: 'cosine' is not the type of any operator that ran",
        ),
    ],
)
def test_names_in_an_acl_json_that_match_nothing_are_reported(
    tmp_path: Path, entry: dict[str, Any], expected: str
) -> None:
    config = {"dump": {"dump_path": str(tmp_path), "dump_list": [entry], "dump_level": "op"}}
    (tmp_path / "acl.json").write_text(json.dumps(config))
    with opdump.capture(tmp_path / "acl.json") as dump:
        jax.jit(lambda x: jnp.sin(x) * 2)(X)
    assert dump.report is not None
    assert [each for each in dump.report.warnings if expected in each] != [], dump.report.warnings
