"""The same programs under TensorFlow's own debugger (version 2, whole tensors) and under capture: operators and values of both."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.debug.lib import debug_events_reader

from tests.tensorflow.functions.recording import recorded

# The debugger lists the inputs of a graph and what the runtime removes before a run; a capture skips these as `constant`, `fed` and
# `not executed`. The debugger leaves out operators that pass a tensor on.
ONLY_OF_THE_DEBUGGER = {
    "loops_and_branches": {
        *("Placeholder", "Const", "Range", "Sub", "FloorDiv", "FloorMod", "NotEqual", "Cast", "AddV2", "Maximum"),
    },
    "training": {"Placeholder", "Const", "Conv2DBackpropInput"},
}
ONLY_OF_CAPTURE = {"Identity"}
Seen = Counter[tuple[str, str, int, str]]
"""How often an operator (type, name in its function, output) produced these values."""


def loops_and_branches() -> Callable[[], Any]:
    factor = tf.Variable(1.5)

    @tf.function
    def inner(x: Any) -> Any:
        return tf.tanh(x) * factor

    @tf.function
    def run(x: Any) -> Any:
        for _ in tf.range(3):
            x = tf.sin(x) + inner(x)
        if tf.reduce_sum(x) > 0.0:
            x = tf.exp(x)
            x = x / 2.0
        else:
            x = tf.cos(x)
        return tf.map_fn(tf.sqrt, x)

    return lambda: run(tf.constant([0.5, 1.0]))


def training() -> Callable[[], Any]:
    rng = np.random.default_rng(0)
    weights = [tf.Variable(rng.normal(size=shape).astype(np.float32)) for shape in ((3, 3, 1, 4), (36, 5))]
    images = tf.constant(rng.normal(size=(4, 6, 6, 1)).astype(np.float32))
    labels = tf.constant([0, 1, 2, 3])

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            features = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(images, weights[0], 1, "SAME")), 2, 2, "VALID")
            logits = tf.matmul(tf.reshape(features, [4, 36]), weights[1])
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            tf.raw_ops.ResourceApplyGradientDescent(var=weight.handle, alpha=0.1, delta=gradient)
        return loss

    return lambda: step()  # noqa: PLW0108  a tf.function has no annotations


def seen_by_capture(program: Callable[[], Any]) -> Seen:
    with recorded(inputs=False) as recording:
        program()
    traced = {op.graph_id for op in recording.writer.ops if op.skip == "control flow" or op.op_type == "ReadVariableOp"}
    return Counter(
        _seen(tensor.op.op_type, tensor.op.op_name, tensor.slot, tensor.payload.to_host())
        for tensor in recording.writer.tensors
        if tensor.payload is not None and tensor.op.graph_id in traced
    )


def seen_by_the_debugger(program: Callable[[], Callable[[], Any]]) -> Seen:
    with tempfile.TemporaryDirectory() as folder:
        writer = tf.debugging.experimental.enable_dump_debug_info(folder, "FULL_TENSOR", circular_buffer_size=-1)
        program()()
        writer.FlushNonExecutionFiles()
        writer.FlushExecutionFiles()
        tf.debugging.experimental.disable_dump_debug_info()
        found: Seen = Counter()
        with debug_events_reader.DebugDataReader(folder) as reader:
            reader.update()
            for trace in reader.graph_execution_traces():
                value = reader.graph_execution_trace_to_tensor_value(trace)
                found[_seen(trace.op_type, trace.op_name, trace.output_slot, value)] += 1
        return found


def _seen(op_type: str, name: str, slot: int, value: Any) -> tuple[str, str, int, str]:
    # Two functions may have operators with the same name: a capture prefixes the path, and the debugger has separate graphs.
    return op_type, name.rpartition("/")[2], slot, np.asarray(value).tobytes().hex()


@pytest.mark.parametrize("program", [loops_and_branches, training])
def test_the_debugger_of_tensorflow_sees_the_same_operators_and_values(
    program: Callable[[], Callable[[], Any]],
) -> None:
    debugger = seen_by_the_debugger(program)
    capture = seen_by_capture(program())
    assert sum((debugger & capture).values()) > 15
    assert _types(debugger - capture) == ONLY_OF_THE_DEBUGGER[program.__name__]
    assert _types(capture - debugger) == ONLY_OF_CAPTURE


def _types(seen: Seen) -> set[str]:
    return {op_type for op_type, _, _, _ in seen}
