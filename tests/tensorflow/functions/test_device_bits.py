"""Programs on several devices of one process: the answer stays the same, and each operator is recorded with its device."""

# The programs are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc"

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.tensorflow.functions.recording import recorded

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
X = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
# Two strategies would share the keys of their collectives.
STRATEGY = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def loop_of_a_strategy():
    with STRATEGY.scope():
        weight = tf.Variable(tf.ones([6, 3]) * 0.1)
        bias = tf.Variable(tf.zeros([3]))

    @tf.function
    def step(x):
        def replica(x):
            shift = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
            with tf.GradientTape() as tape:
                y = tf.nn.relu(tf.nn.bias_add(tf.matmul(x + shift, weight), bias))
                loss = tf.reduce_mean(tf.tanh(y) ** 2)
            gradients = tape.gradient(loss, [weight, bias])
            for variable, gradient in zip([weight, bias], gradients, strict=True):
                total = tf.distribute.get_replica_context().all_reduce("sum", gradient)
                variable.assign_sub(0.1 * total)
            return loss

        return STRATEGY.reduce("SUM", STRATEGY.run(replica, (x,)), None)

    losses = [step(tf.constant(X)).numpy() for _ in range(4)]
    return [*losses, *(each.numpy() for variable in (weight, bias) for each in variable.values)]


def keras_under_a_strategy():
    keras.utils.set_random_seed(3)
    with STRATEGY.scope():
        model = keras.Sequential([keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    history = model.fit(X, X.sum(1, keepdims=True), batch_size=4, epochs=2, verbose=0, shuffle=False)
    return [*history.history["loss"], *model.get_weights()]


def two_devices_in_a_function():
    @tf.function
    def run(x):
        with tf.device("CPU:0"):
            one = tf.nn.relu(tf.matmul(x, x, transpose_b=True))
        with tf.device("CPU:1"):
            other = tf.tanh(one) * 2.0
            for _ in tf.range(3):
                other = other + tf.sin(one)
        return one + other

    return [run(tf.constant(X)).numpy() for _ in range(3)]


@pytest.mark.parametrize("program", [loop_of_a_strategy, keras_under_a_strategy, two_devices_in_a_function])
def test_a_program_on_several_devices_gives_the_same_bits_and_each_operator_its_device(program) -> None:
    plain = [np.asarray(each).tobytes() for each in program()]
    with recorded(steps="0|2") as recording:
        captured = [np.asarray(each).tobytes() for each in program()]
    assert captured == plain
    assert not recording.recorder.warnings
    of_type = "Tanh" if program is not keras_under_a_strategy else "MatMul"
    devices = {op.arguments.get("device", "CPU:0") for op in recording.ops(op_type=of_type)}
    assert devices == ({"CPU:1"} if program is two_devices_in_a_function else {"CPU:0", "CPU:1"})
    assert [np.asarray(each).tobytes() for each in program()] == plain
