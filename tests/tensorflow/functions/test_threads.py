"""Operators in other threads than the one that began the capture: threads of the program, callbacks of the runtime, data sets."""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc"

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_callbacks

from opdump.adapters.tensorflow.functions import optimised
from tests.tensorflow.functions.recording import recorded

X = np.array([0.5, 2.0], np.float32)


def in_thread(function, *arguments):
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    thread.join()


def names(recording, op_type):
    return [op.op_name for op in recording.ops(op_type=op_type)]


def test_eager_operators_of_threads_and_executors_are_recorded() -> None:
    class Worker(threading.Thread):
        def run(self):
            self.found = tf.exp(tf.constant(X))

    with recorded() as recording:
        in_thread(lambda: tf.sin(tf.constant(X)))
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(tf.cos, [tf.constant(X)] * 3))
        worker = Worker()
        worker.start()
        worker.join()
        tf.tanh(tf.constant(X))
    assert len(names(recording, "Sin")) == 1
    assert len(set(names(recording, "Cos"))) == 3, "names are unique within a step"
    assert len(names(recording, "Exp")) == 1
    assert names(recording, "Tanh") == ["Tanh_0"], "the thread that began the capture keeps its plain names"
    (sine,) = recording.ops(op_type="Sin")
    assert sine.op_name.endswith("/Sin_0")
    assert np.allclose(recording.array(sine), np.sin(X))
    assert recording.recorder.warnings == []


def test_a_thread_follows_the_steps_of_the_program() -> None:
    weight, turns, done = tf.Variable(X), threading.Semaphore(0), threading.Semaphore(0)

    def work():
        for _ in range(3):
            turns.acquire()
            tf.sin(weight)
            done.release()

    optimizer = keras.optimizers.SGD(0.1)
    thread = threading.Thread(target=work)
    with recorded(steps="1") as recording:
        thread.start()
        for _ in range(3):
            turns.release()
            done.acquire()
            optimizer.apply_gradients([(tf.ones(2), weight)])
        thread.join()
    assert [op.step for op in recording.ops(op_type="Sin")] == [1]


def test_steps_that_a_thread_ends_are_those_of_the_first_thread_too() -> None:
    weight, optimizer = tf.Variable(X), keras.optimizers.SGD(0.1)
    with recorded(steps="1") as recording:
        tf.sin(weight)
        in_thread(lambda: optimizer.apply_gradients([(tf.ones(2), weight)]))
        tf.cos(weight)
    assert [op.step for op in recording.ops(op_type="Cos")] == [1]
    assert recording.ops(op_type="Sin") == []


def test_operators_of_python_functions_in_a_graph_are_recorded() -> None:
    def doubled(x):
        return tf.cos(x) * 2.0

    @tf.function
    def run(x):
        return tf.py_function(doubled, [x], tf.float32) + 1.0

    with recorded() as recording:
        run(tf.constant(X))
    (cosine,) = recording.ops(op_type="Cos")
    assert cosine.op_name == "doubled/Cos_0"
    assert np.allclose(recording.array(cosine), np.cos(X))


def test_operators_of_data_set_generators_are_recorded() -> None:
    def numbers():
        for number in range(2):
            yield tf.exp(tf.constant(float(number)))

    data = tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([], tf.float32))
    with recorded() as recording:
        assert len(list(data)) == 2
    assert len(names(recording, "Exp")) == 2
    assert recording.recorder.warnings == []


def told_of(data, consume, steps="all", **plan):
    with recorded(steps=steps, **plan) as recording:
        consume(data)
    return recording, {op.op_type for op in recording.skipped(skip="not observed")}, recording.recorder.warnings


def test_functions_of_data_sets_are_listed_and_reported() -> None:
    data = (
        tf.data.Dataset.range(8)
        .map(lambda each: tf.tanh(tf.cast(each, tf.float32)), num_parallel_calls=2)
        .filter(lambda each: tf.math.is_finite(each * 1.0))
        .flat_map(lambda each: tf.data.Dataset.from_tensors(tf.sin(each)))
        .interleave(lambda each: tf.data.Dataset.from_tensors(tf.exp(each)))
        .scan(0.0, lambda state, each: (state + each, tf.sqrt(state)))
        .take_while(lambda each: each < 1e9)
        .batch(2)
        .prefetch(1)
    )
    for consume in (
        list,
        lambda data: data.reduce(0.0, lambda state, each: state + tf.reduce_sum(each)),
        lambda data: data.take(1).get_single_element(),
        lambda data: list(data.as_numpy_iterator()),
        lambda data: tf.function(lambda: data.reduce(0.0, lambda state, each: state + tf.reduce_sum(each)))(),
    ):
        recording, types, warnings = told_of(data, consume)
        assert {"Tanh", "IsFinite", "Sin", "Exp", "Sqrt", "Less"} <= types, types
        for name in ("map", "filter", "flat_map", "interleave", "scan", "take_while"):
            assert any(f"the operators of Dataset_{name}_lambda" in text for text in warnings), (name, warnings)
        assert recording.recorder.tally.skipped["not observed"] >= 6
        assert (
            recording.recorder.tally.executed
            == recording.recorder.tally.captured + recording.recorder.tally.skipped.total()
        )
    recording, types, warnings = told_of(
        tf.data.Dataset.range(3), lambda data: data.reduce(np.int64(0), lambda state, each: state - each)
    )
    assert "Sub" in types
    assert any("the operators of reduce_lambda" in text for text in warnings), warnings


def test_functions_of_data_sets_are_reported_if_only_overflows_are_dumped() -> None:
    data = tf.data.Dataset.range(3).map(lambda each: tf.tanh(tf.cast(each, tf.float32)))
    for consume in (list, lambda data: tf.function(lambda: data.reduce(0.0, lambda state, each: state + each))()):
        recording, _, warnings = told_of(data, consume, captures="overflow", layout="acl", saved_data="tensor")
        assert any("the operators of Dataset_map_lambda" in text for text in warnings), warnings
        assert recording.recorder.tally.skipped["not observed"] >= 2


def test_functions_of_data_sets_within_functions_of_data_sets_are_listed() -> None:
    def deep(each):
        inner = tf.data.Dataset.from_tensors(tf.cast(each, tf.float32))
        return inner.map(tf.sin).flat_map(lambda x: tf.data.Dataset.from_tensors(x).map(tf.exp))

    @tf.function
    def total(count):
        data = tf.data.Dataset.range(count).interleave(deep)
        return data.reduce(0.0, lambda state, each: state + each)

    for consume in (list, lambda _: total(3)):
        recording, types, _ = told_of(tf.data.Dataset.range(3).interleave(deep), consume)
        assert {"Cast", "Sin", "Exp"} <= types, types
        assert not [each for each in types if "Dataset" in each], "a data set is a handle"
        assert (
            recording.recorder.tally.executed
            == recording.recorder.tally.captured + recording.recorder.tally.skipped.total()
        )


def test_an_iterator_that_is_older_than_the_capture_is_reported_too() -> None:
    iterator = iter(tf.data.Dataset.range(8).map(lambda each: each * 3))
    _, types, warnings = told_of(iterator, next)
    assert "Mul" in types
    assert len(warnings) == 1
    following = tf.function(lambda iterator: next(iterator) + 1)
    iterator = iter(tf.data.Dataset.range(8).map(lambda each: each * 3))
    _, types, warnings = told_of(iterator, following)
    assert "Mul" in types, "an iterator that a function is given"
    iterator = iter(tf.data.Dataset.range(8).map(lambda each: each * 3))
    _, types, warnings = told_of(iterator, next, steps="5")
    assert (types, warnings) == (set(), []), "no step was dumped"


def test_bodies_of_loops_over_data_sets_are_listed() -> None:
    data = tf.data.Dataset.range(3).map(lambda each: tf.cast(each, tf.float32))

    @tf.function
    def total(batches):
        found = tf.constant(0.0)
        for batch in batches:
            found += tf.sqrt(batch)
        return found

    for steps in ("all", "2"):
        recording, types, warnings = told_of(data, lambda data: [total(data) for _ in range(3)], steps)
        assert {"Sqrt", "Cast"} <= types, (steps, types)
        assert any("ReduceDataset" in text for text in warnings), warnings
        assert recording.recorder.tally.skipped["not observed"] >= 2
        assert (
            recording.recorder.tally.executed
            == recording.recorder.tally.captured + recording.recorder.tally.skipped.total()
        )


def test_data_set_functions_of_the_program_under_keras_fit_are_reported_and_those_of_keras_are_not() -> None:
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    x, y = np.ones((8, 3), np.float32), np.ones((8, 2), np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, y)).map(lambda x, y: (x * 2.0, y)).batch(4)
    _, types, warnings = told_of(data, lambda data: model.fit(data, verbose=0))
    assert "Mul" in types
    assert len(warnings) == 1
    _, types, warnings = told_of(data, lambda _: model.fit(x, y, verbose=0))
    assert (types, warnings) == (set(), [])


def test_callbacks_of_the_program_see_what_they_would_see() -> None:
    def seen_by_program(**capture):
        seen = []

        def callback(op_type, inputs, attrs, outputs, op_name=None, graph=None):
            seen.append((str(op_type), None if outputs is None else len(outputs), graph is None))
            return outputs

        def program():
            op_callbacks.add_op_callback(callback)
            try:
                tf.sin(tf.constant(X))
                tf.function(lambda x: tf.cos(x) + 1.0)(tf.constant(X))
            finally:
                op_callbacks.remove_op_callback(callback)

        if not capture:
            program()
            return seen
        with recorded(**capture) as recording:
            program()
        assert len(names(recording, "Sin")) == (capture["steps"] == "all")
        return seen

    plain = seen_by_program()
    assert len(plain) >= 4
    numbers = str.maketrans("", "", "0123456789")
    for steps in ("all", "5"):
        found = seen_by_program(steps=steps)
        assert [(name.translate(numbers), *rest) for name, *rest in found] == [
            (name.translate(numbers), *rest) for name, *rest in plain
        ], (found, plain)


def test_checks_of_numerics_work_beside_a_capture() -> None:
    @tf.function
    def run(x):
        return tf.math.log(x) * 2.0

    for first in (True, False):
        if first:
            tf.debugging.enable_check_numerics()
        try:
            with recorded() as recording:
                if not first:
                    tf.debugging.enable_check_numerics()
                for bad in (tf.math.log, tf.function(tf.sqrt)):
                    with pytest.raises(tf.errors.InvalidArgumentError, match="!!! Detected Infinity or NaN"):
                        bad(tf.constant(-1.0))
                assert np.allclose(run(tf.constant(X)), np.log(X) * 2.0)
            assert len(names(recording, "Log")) >= 1
        finally:
            tf.debugging.disable_check_numerics()


def test_graphs_of_another_function_that_is_optimised_meanwhile_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = tf.Variable(X)
    plain = tf.function(lambda x: tf.reduce_sum(tf.sin(x) * weight))(tf.constant(X))
    collected, calls = optimised._collected, []

    def mixed(*arguments):
        metadata = collected(*arguments)
        calls.append(len(metadata.function_graphs))
        if len(calls) == 1:
            for graphs in metadata.function_graphs:
                for graph in (graphs.post_optimization_graph, *graphs.partition_graphs):
                    for node in graph.node:
                        node.name += "_of_another" if node.op == "_Retval" else ""
        return metadata

    monkeypatch.setattr(optimised, "_collected", mixed)
    with recorded() as recording:
        found = tf.function(lambda x: tf.reduce_sum(tf.sin(x) * weight))(tf.constant(X))
    assert found.numpy() == plain.numpy()
    assert len(calls) > 1
    assert len(recording.ops(op_type="Sin")) == 1
    assert recording.recorder.warnings == []


def test_trainings_in_threads_answer_as_without_capture() -> None:
    def trainings():
        found = {}

        def train(number):
            weight = tf.Variable(X * (number + 1))
            forward = tf.function(lambda x: tf.reduce_mean((x * weight) ** 2))
            for _ in range(3):
                with tf.GradientTape() as tape:
                    loss = forward(tf.constant(X))
                weight.assign_sub(0.1 * tape.gradient(loss, weight))
            found[number] = [float(loss), *weight.numpy().tolist()]

        threads = [threading.Thread(target=train, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    plain = trainings()
    for _ in range(5):
        keras.utils.set_random_seed(5)  # clears the runtime's caches
        with recorded(saved_data="statistic"):
            assert trainings() == plain
