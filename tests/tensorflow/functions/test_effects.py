"""No effect of a TensorFlow program outside of its graph happens more often under capture.

Python callbacks of every kind, declared stateful or not, in functions, branches, loops, gradients, data sets and layers;
printing, queues, tables, variables, summaries.
"""

# The programs are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc"

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.tensorflow.effects import X, counting, hold_equal, host, ran
from tests.tensorflow.functions.recording import recorded

PROGRAMS: list[Any] = []
WAYS: dict[str, dict[str, Any]] = {
    "statistics": {"saved_data": "statistic"},
    "full": {"saved_data": "full"},
    "one step": {"saved_data": "full", "steps": "1"},
    "overflow": {"captures": "overflow"},
}


def program(function):
    PROGRAMS.append(function)
    return function


@program
def callbacks(counts, folder):
    @tf.function
    def run(x):
        y = host(counts, "numpy", x) + host(counts, "stateless", x, stateful=False)
        y += tf.py_function(counting(counts, "python"), [x], tf.float32)
        y += tf.compat.v1.py_func(counting(counts, "old"), [x], tf.float32, stateful=False)
        return tf.nn.relu(y * 0.5)

    return [run(tf.constant(X)).numpy() for _ in range(3)]


@program
def callbacks_of_constants(counts, folder):
    @tf.function
    def inner(x):
        return host(counts, "inner", x, stateful=False)

    @tf.function
    def run(x):
        y = x / tf.sqrt(host(counts, "constant", tf.constant(X), stateful=False)) * 3.0
        y += host(counts, "of a constant sum", tf.constant(X) + 1.0, stateful=False) + inner(tf.constant(X))
        if tf.reduce_sum(x) > 0:
            y += host(counts, "branch", tf.constant(X), stateful=False)
        return y

    return [run(tf.constant(X)).numpy() for _ in range(3)]


@program
def callbacks_in_control_flow(counts, folder):
    @tf.function
    def inner(x):
        return host(counts, "inner", x, stateful=False) + 1.0

    @tf.function
    def run(x):
        y = inner(x) + inner(x * 2.0)
        y = tf.cond(tf.reduce_sum(x) > 0, lambda: host(counts, "taken", y, stateful=False), lambda: y)
        y = tf.switch_case(tf.constant(1), [lambda: y, lambda: host(counts, "chosen", y, stateful=False)])
        for _ in tf.range(3):
            y = host(counts, "loop", y, stateful=False)
        y += tf.map_fn(lambda each: host(counts, "map", each, stateful=False), x)
        y += tf.vectorized_map(lambda each: host(counts, "vectorised", each, stateful=False), x)
        return y + tf.scan(lambda _, each: host(counts, "scan", each, stateful=False), x)

    return [run(tf.constant(X)).numpy() for _ in range(3)]


@program
def gradients_of_callbacks(counts, folder):
    weight = tf.Variable(X)

    @tf.custom_gradient
    def doubled(x):
        return host(counts, "forward", x, stateful=False), lambda up: host(counts, "backward", up, stateful=False)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(doubled(weight) ** 2) + tf.reduce_sum(
                tf.py_function(counting(counts, "differentiated", lambda x: x * x), [weight], tf.float32)
            )
        weight.assign_sub(0.01 * tape.gradient(loss, weight))
        return loss

    return [*(step().numpy() for _ in range(3)), weight.numpy()]


@program
def effects_of_operators(counts, folder):
    printed, table = folder / "printed", tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
    total, queue = tf.Variable(0.0), tf.queue.FIFOQueue(20, [tf.float32])
    generator = tf.random.Generator.from_seed(3)
    writer = tf.summary.create_file_writer(str(folder / "events"))

    @tf.function
    def run(x):
        tf.print("printed", x, output_stream=f"file://{printed}")
        key = tf.cast(total.assign_add(tf.reduce_sum(x)), tf.int64)
        table.insert(key, table.lookup(key) + 1.0)
        queue.enqueue(total * 2.0)
        tf.debugging.assert_positive(x)
        with writer.as_default():
            tf.summary.write("loss", total, step=1)
        values = tf.TensorArray(tf.float32, 2, clear_after_read=True).write(0, x[0]).write(1, x[1])
        return values.stack() + generator.normal([2]) + queue.dequeue()

    answers = [run(tf.constant(X)).numpy() for _ in range(3)]
    writer.flush()
    counts["lines"] = printed.read_text().count("printed")
    counts["queued"] = int(queue.size())
    counts["events"] = sum(
        1 for each in (folder / "events").iterdir() for _ in tf.compat.v1.io.tf_record_iterator(str(each))
    )
    return [*answers, total.numpy(), *(each.numpy() for each in table.export()), generator.state.numpy()]


@program
def writes_into_what_is_read(counts, folder):
    @tf.function
    def run(x):
        y = tf.raw_ops.InplaceAdd(x=tf.nn.relu(x), i=[0], v=[1.0])
        return tf.raw_ops.InplaceUpdate(x=y * 1.0, i=[1], v=[5.0]) * 2.0

    return [run(tf.constant(X)).numpy() for _ in range(3)]


@program
def data_of_generators(counts, folder):
    def numbers():
        for number in range(4):
            counts["generated"] += 1
            yield np.float32(number)

    data = tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([], tf.float32))
    data = data.map(lambda each: host(counts, "mapped", each, stateful=False))

    @tf.function
    def total():
        found = tf.constant(0.0)
        for each in data:
            found += host(counts, "summed", each, stateful=False)
        return found + data.reduce(0.0, lambda one, other: one + host(counts, "reduced", other, stateful=False))

    eager = [each.numpy() for each in data]
    iterator = iter(data)

    @tf.function
    def following():
        return next(iterator) * 2.0

    # The whole data set: how far it is read ahead depends on timing.
    return [total().numpy(), total().numpy(), *eager, *(following().numpy() for _ in range(4))]


@program
def training_with_keras(counts, folder):
    import keras

    class Counted(keras.layers.Layer):
        def call(self, x):
            return x + 0.0 * host(counts, "layer", x, stateful=False)

    class Recorder(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            counts["batches"] += 1

        def on_epoch_end(self, epoch, logs=None):
            counts["epochs"] += 1

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(3), Counted(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(8, 2)
    y = x.sum(1, keepdims=True)
    history = model.fit(x, y, batch_size=4, epochs=2, verbose=0, shuffle=False, callbacks=[Recorder()])
    answers = [*history.history["loss"], *model.evaluate(x, y, verbose=0), model.predict(x, verbose=0)]
    model.compile("sgd", "mse", run_eagerly=True)
    answers += model.fit(x, y, batch_size=4, verbose=0, shuffle=False).history["loss"]
    return [*answers, *model.get_weights()]


@program
def eager_callbacks(counts, folder):
    total = tf.Variable(0.0)
    for _ in range(3):
        total.assign_add(tf.reduce_sum(host(counts, "numpy", tf.constant(X), stateful=False)))
        total.assign_add(tf.reduce_sum(tf.py_function(counting(counts, "python"), [tf.constant(X)], tf.float32)))
    return [total.numpy()]


@pytest.mark.parametrize("program", PROGRAMS)
def test_effects_happen_as_often_as_without_capture(program, tmp_path) -> None:
    plain = ran(program, tmp_path / "plain")
    for way, plan in WAYS.items():
        with recorded(**plan) as recording:
            captured = ran(program, tmp_path / way)
        hold_equal(plain, captured)
        assert recording.ops() or way == "overflow" or "eager" in program.__name__, way
