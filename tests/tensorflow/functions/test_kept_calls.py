"""Functions that TensorFlow does not inline: it optimises each separately, and does not know the caller's variables there."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tests.tensorflow.functions.recording import Recording, recorded

Program = Callable[[], tuple[Callable[[], Any], list[Any]]]
"""Returns a step and its variables."""


def kept(function: Callable[..., Any]) -> Any:
    return tf.function(function, experimental_attributes={"_noinline": True})


def network(shape: list[int | None]) -> tuple[Callable[[], Any], list[Any]]:
    rng = np.random.default_rng(0)
    image = tf.constant(rng.normal(size=(4, 8, 8, 3)).astype(np.float32))
    kernel, weight = (tf.Variable(rng.normal(size=size).astype(np.float32)) for size in ((3, 3, 3, 8), (8, 5)))
    bias, mean, calls = tf.Variable(tf.zeros(8)), tf.Variable(tf.zeros(8)), tf.Variable(0.0)

    @kept
    def layers(x: Any) -> Any:
        y = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias))
        y, batch_mean, _ = tf.compat.v1.nn.fused_batch_norm(y, tf.ones(8), tf.zeros(8))
        mean.assign(mean * 0.9 + batch_mean * 0.1)
        z = tf.nn.softmax(tf.matmul(tf.reduce_mean(tf.nn.relu(y), [1, 2]), weight) + tf.constant([1.0, 2, 3, 4, 5]))
        for _ in tf.range(4):
            z = tf.tanh(z) * tf.cast(tf.shape(x)[0], tf.float32) / 4.0
        z = z * 2.0 if tf.reduce_sum(z) > 0.0 else tf.sqrt(z)
        calls.assign_add(1.0)
        return z + tf.pow(z, 2.0) + tf.pow(tf.abs(z), 0.5)

    step = tf.function(lambda x: tf.exp(layers(x * 1.5)), input_signature=[tf.TensorSpec(shape)])
    return lambda: step(image), [bias, mean, calls]


def calls_within_calls() -> tuple[Callable[[], Any], list[Any]]:
    counter = tf.Variable([1.0, 2.0])

    @kept
    def innermost(x: Any) -> Any:
        counter.assign_add(x)
        return tf.sin(x) * counter

    @kept
    def inner(x: Any) -> Any:
        for _ in tf.range(3):
            x = innermost(x) + 1.0
        return innermost(x)

    @tf.function
    def step(x: Any) -> Any:
        if tf.reduce_sum(x) > 0.0:
            x = inner(x) * 2.0
        return innermost(x), tf.strings.as_string(x)

    return lambda: step(tf.constant([0.5, 0.25])), [counter]


def recurrent(kind: str) -> tuple[Callable[[], Any], list[Any]]:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([getattr(keras.layers, kind)(4, name="cells"), keras.layers.Dense(2)])
    model.compile(optimizer="adam", loss="mse")
    x = np.random.default_rng(1).normal(size=(3, 5, 2)).astype(np.float32)
    model.build((None, 5, 2))
    return lambda: model.train_on_batch(x, np.ones((3, 2), np.float32)), model.variables


PROGRAMS: dict[str, Program] = {
    "shapes_known": lambda: network([4, 8, 8, 3]),
    "shapes_unknown": lambda: network([None, None, None, 3]),
    "calls_within_calls": calls_within_calls,
    "lstm": lambda: recurrent("LSTM"),
    "gru": lambda: recurrent("GRU"),
}


def _bits(program: Program) -> list[bytes]:
    step, state = program()
    results = [step() for _ in range(3)]
    arrays = map(np.asarray, tf.nest.flatten([results, [each.numpy() for each in state]]))
    return [repr(each.tolist()).encode() if each.dtype == object else each.tobytes() for each in arrays]


@pytest.mark.parametrize("name", PROGRAMS)
def test_operators_of_a_kept_call_are_captured_and_the_answer_stays_the_same(name: str) -> None:
    plain = _bits(PROGRAMS[name])
    assert _bits(PROGRAMS[name]) == plain, "the program itself does not give the same numbers twice"
    for steps in ("0-1000", "1"):
        with recorded(steps=steps) as recording:
            captured = _bits(PROGRAMS[name])
        assert captured == plain
        assert not recording.recorder.warnings
        reasons = {"constant", "control flow", "handle", "not executed"}
        left_out = [op for op in recording.skipped() if op.skip not in reasons]
        # Nothing reads the gradient of the batch, and TensorFlow 2.15 removes it from the loop.
        assert [op.op_name for op in left_out if not op.op_name.endswith("while/MatMul_grad/MatMul")] == []
        recurrence = {"lstm": "Tanh", "gru": "Tanh", "calls_within_calls": "Sin"}.get(name, "Softmax")
        assert recording.ops(op_type=recurrence)


def test_each_trip_and_each_call_has_its_own_values() -> None:
    step, (counter,) = calls_within_calls()
    with recorded() as recording:
        step()
    sines = recording.ops(op_type="Sin")
    assert Counter(op.op_name.rpartition("/")[0].count("Call") for op in sines).total() == 5
    value, x, state = [], np.array([0.5, 0.25], np.float32), np.array([1.0, 2.0], np.float32)

    def innermost(given: Any) -> Any:
        nonlocal state
        value.append(given)
        state = state + given
        return np.sin(given) * state

    for _ in range(3):
        x = innermost(x) + np.float32(1)
    innermost(innermost(x) * np.float32(2))
    seen = [recording.array(op, "input") for op in sorted(sines, key=lambda op: op.timestamp)]
    assert np.allclose(seen, value, rtol=1e-6)
    assert np.allclose(counter.numpy(), state, rtol=1e-6)


@pytest.mark.parametrize("name", ["shapes_known", "shapes_unknown"])
def test_what_is_recorded_of_a_kept_call_is_what_tensorflow_executes_for_it(name: str) -> None:
    step, _ = PROGRAMS[name]()
    step()
    executed = _executed(step)
    with recorded(steps="0") as recording:
        step()
    by_itself = [op for op in recording.ops() if op.arguments.get("source") not in ("computed apart", "constant")]
    for op in by_itself:
        node = op.op_name.removeprefix("StatefulPartitionedCall/")
        found = {kind for place, kind in executed.items() if _without_numbers(place) == node}
        own = {f"{prefix}{op.op_type}" for prefix in ("", "_Mkl", "_MklNative")}  # which library's kernel runs
        assert found <= ({op.arguments["executed_as"]} if "executed_as" in op.arguments else own), (node, found)
    types = {op.op_type for op in by_itself}
    assert {"MatMul", "Tanh", "FusedBatchNormV3", "AssignAddVariableOp"} <= types, types


def _executed(step: Callable[[], Any]) -> dict[str, str]:
    """The nodes that a step executes, with their types."""
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as place:
        tf.profiler.experimental.start(place, tf.profiler.experimental.ProfilerOptions(host_tracer_level=3))
        step()
        tf.profiler.experimental.stop()
        for file in Path(place).rglob("*.xplane.pb"):
            for plane in xplane_pb2.XSpace.FromString(file.read_bytes()).planes:
                names = (re.match(r"(.+):(\w+)$", value.name) for value in plane.event_metadata.values())
                found.update((name[1], name[2]) for name in names if name)
    assert found
    return found


def _without_numbers(name: str) -> str:
    return re.sub(r"/_\d+(?=/)", "", name)


def test_the_graphs_that_the_program_collects_are_its_own() -> None:
    def traced(capture: Callable[[], Any]) -> tuple[Recording | None, bytes]:
        run = tf.function(lambda x: tf.exp(x) * 2.0)
        before = tf.function(tf.sin)
        with tempfile.TemporaryDirectory() as place, tf.summary.create_file_writer(place).as_default():
            tf.summary.trace_on(graph=True)
            before(tf.ones([2]))
            with capture() as recording:
                run(tf.ones([2]))
            tf.summary.trace_export("graphs", step=0)
            tf.summary.flush()
            return recording, b"".join(path.read_bytes() for path in Path(place).rglob("events*"))

    recording, events = traced(recorded)
    assert recording is not None
    assert recording.ops(op_type="Exp")
    assert not recording.recorder.warnings
    assert b"Sin" in events
    assert b"Exp" in events
