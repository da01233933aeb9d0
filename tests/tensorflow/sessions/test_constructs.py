"""What a capture of sessions writes for constructs of graphs other than control flow, compared with numpy and with plain runs."""

# The programs of the cases are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc"

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from opdump.plan import StepSet
from tests.tensorflow.sessions.both_ways import X, both, close, x_fed
from tests.tensorflow.sessions.recording import recorded, same, v1

v1.disable_eager_execution()
v1.disable_control_flow_v2()


@pytest.mark.parametrize(
    ("optimizer", "ref"),
    [
        (lambda: v1.train.GradientDescentOptimizer(0.001), True),
        (lambda: v1.train.MomentumOptimizer(0.001, 0.9), True),
        (lambda: v1.train.AdamOptimizer(0.01), True),
        (lambda: v1.train.AdamOptimizer(0.01), False),
        (lambda: v1.train.MomentumOptimizer(0.001, 0.9), False),
    ],
    ids=["descent of a reference", "momentum of a reference", "Adam of a reference", "Adam", "momentum"],
)
def test_the_input_of_an_update_is_the_value_before_it(optimizer, ref) -> None:
    def build():
        x, feed = x_fed()
        w = v1.get_variable("w", initializer=np.full((8, 2), 0.5, np.float32))
        loss = tf.reduce_sum(tf.square(tf.matmul(x, w, name="mm")), name="loss")
        return [optimizer().minimize(loss), loss], feed

    found, answers = both(build, runs=4, ref=ref)
    w = np.full((8, 2), 0.5, np.float32)
    close(found, "mm", X @ w)
    for step in range(4):
        values = found.values("w/read" if ref else "mm/ReadVariableOp", step)
        assert len(values) == 1, (step, values)
        loss = np.square(X @ values[0]).sum()
        assert np.allclose(loss, answers[step][1], 1e-4), (step, loss, answers[step][1])
        assert np.allclose(found.value("mm", step, "input", 1), values[0]), "input of mm"
        if ref:
            assert same(found.value("w", step), values[0]), "the variable itself"


def test_each_update_of_a_reference_variable_is_seen_in_its_place() -> None:
    def build():
        w = v1.get_variable("w", initializer=np.float32(1.0))
        first = v1.assign_add(w, 2.0, name="first")
        with tf.control_dependencies([first]):
            second = v1.assign(w, tf.multiply(w.value(), 10.0, name="times"), name="second")
        with tf.control_dependencies([second]):
            return tf.identity(w.value() + 0.5, name="end"), {}

    found, answers = both(build, runs=2, ref=True)
    assert answers == [30.5, 320.5], answers
    # The operator reads the memory of the variable, which the first update has already written.
    close(found, "times", 30.0)
    close(found, "first", 3.0)
    close(found, "second", 30.0)
    close(found, "first", 32.0, step=1)


def test_views_of_a_reference_variable_show_it_before_the_update() -> None:
    def build():
        w = v1.get_variable("w", initializer=np.arange(8, dtype=np.float32))
        flat = tf.reshape(w, [4, 2], name="view")
        part = tf.slice(flat, [1, 0], [2, 2], name="part")
        loss = tf.reduce_sum(part * 2.0) + tf.reduce_sum(flat)
        with tf.control_dependencies(
            [loss]
        ):  # otherwise, with or without a dump, the loss might be read before or after the update
            return [v1.train.GradientDescentOptimizer(0.5).minimize(loss), loss], {}

    found, _ = both(build, runs=2, ref=True)
    w = np.arange(8, dtype=np.float32)
    close(found, "w", w)
    close(found, "view", w.reshape(4, 2))
    close(found, "part", w.reshape(4, 2)[1:3])
    close(found, "view", w.reshape(4, 2) - 0.5 * (1 + 2 * np.array([[0], [1], [1], [0]])), step=1)


def test_what_is_behind_a_fed_tensor_does_not_run() -> None:
    def build():
        x = v1.placeholder(tf.float32, [None, 8], name="x")
        hidden = tf.exp(x, name="hidden")
        top = tf.multiply(hidden, 2.0, name="top")
        return top, {hidden: X}

    found, _ = both(build)
    close(found, "top", X * 2)
    close(found, "top", X, io="input")
    assert found.skips() == {"hidden": "fed", "top/y": "constant"}, (
        "what is behind a fed tensor does not run",
        found.skips(),
    )


def test_an_operator_of_which_one_output_is_fed_is_recorded() -> None:
    def build():
        x, feed = x_fed()
        _mean, _variance = tf.nn.moments(x, [0], name="moments")
        halves = tf.split(x, 2, axis=1, name="halves")
        return tf.add(halves[0], halves[1], name="total"), {**feed, halves[1]: X[:, 4:] * 0}

    found, _ = both(build)
    close(found, "total", X[:, :4])
    close(found, "halves", X[:, :4], slot=0)


def test_sparse_tensors_are_fed_and_fetched() -> None:
    def build():
        s = v1.sparse_placeholder(tf.float32, name="s")
        doubled = tf.sparse.map_values(tf.multiply, s, 2.0)
        table = v1.get_variable("table", initializer=np.arange(12, dtype=np.float32).reshape(6, 2))
        rows = tf.gather(table, [1, 3], name="rows")
        slices = tf.gradients(tf.reduce_sum(rows), table)[0]
        return [doubled, slices, tf.sparse.reduce_sum(doubled, name="total")], {
            s: v1.SparseTensorValue([[0, 1], [2, 3]], np.array([1, 2], np.float32), [4, 4])
        }

    found, answers = both(build)
    assert isinstance(answers[0][0], v1.SparseTensorValue), answers[0]
    assert answers[0][2] == 6.0, answers[0]
    close(found, "Mul", [2.0, 4.0])


def test_texts_are_opaque_and_their_readers_are_recorded() -> None:
    def build():
        x, feed = x_fed()
        text = tf.strings.as_string(x, name="text")
        return tf.strings.length(text, name="length"), feed

    found, answers = both(build)
    assert same(found.value("length"), answers[0])


def test_each_element_type_is_recorded_exactly() -> None:
    def build():
        values = {}
        for name in (
            "bfloat16",
            "float16",
            "float64",
            "complex64",
            "complex128",
            "int8",
            "uint8",
            "int16",
            "uint16",
            "int32",
            "int64",
            "uint32",
            "uint64",
            "bool",
        ):
            kind = tf.as_dtype(name)
            fed = v1.placeholder(tf.float32, [4], name=f"in_{name}")
            values[name] = (fed, tf.identity(tf.cast(fed, kind, name=f"cast_{name}"), name=f"out_{name}"))
        return {name: made for name, (_, made) in values.items()}, {
            fed: [0.0, 1.0, 2.0, 3.0] for fed, _ in values.values()
        }

    found, answers = both(build)
    for name, answer in answers[0].items():
        value = found.value(f"cast_{name}")
        assert np.array_equal(
            np.asarray(value, answer.dtype if name != "bfloat16" else np.float32),
            np.asarray(answer, value.dtype if name == "bfloat16" else answer.dtype),
        ), (name, value, answer)


def test_a_network_of_quantised_tensors_is_recorded() -> None:
    def build():
        x, feed = x_fed()
        q = tf.quantization.quantize(x, -3.0, 3.0, tf.quint8, name="q")
        return tf.quantization.dequantize(q.output, q.output_min, q.output_max, name="back"), feed

    found, answers = both(build)
    assert same(found.value("back"), answers[0])


def test_scalars_and_empty_tensors_are_recorded() -> None:
    def build():
        n = v1.placeholder(tf.int64, [], name="n")
        rows = tf.zeros([n, 3], name="rows")
        return [
            tf.add(n, 1, name="one_more"),
            tf.reduce_sum(rows, 0, name="total"),
            tf.multiply(rows, 2.0, name="twice"),
        ], {n: 0}

    found, _ = both(build)
    close(found, "one_more", 1)
    close(found, "total", [0, 0, 0])


def test_a_placeholder_gives_its_default_where_nothing_is_fed() -> None:
    def build():
        p = v1.placeholder_with_default(tf.constant(2.0), [], name="p")
        return tf.add(p, 1.0, name="total"), {}

    found, _ = both(build)
    close(found, "total", 3.0)
    close(found, "total", 2.0, io="input")


def _data(make):
    def build():
        v = v1.get_variable("v", initializer=np.float32(0))
        item = make(tf.data.Dataset.range(10).map(lambda n: tf.cast(n, tf.float32)).batch(2)).get_next()
        return v1.assign_add(v, tf.reduce_sum(item, name="total")), {}

    found, _ = both(build, runs=4, steps=StepSet.of(1, 3))
    close(found, "total", 5.0, step=1)
    close(found, "total", 13.0, step=3)
    close(found, "IteratorGetNext", [6, 7], step=3)


def test_a_one_shot_iterator_gives_each_step_its_batch() -> None:
    _data(v1.data.make_one_shot_iterator)


def test_an_initialisable_iterator_gives_each_step_its_batch() -> None:
    def make(dataset):
        iterator = v1.data.make_initializable_iterator(dataset)
        v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        return iterator

    _data(make)


def test_runs_that_fill_queues_are_no_steps() -> None:
    def program():
        with tf.Graph().as_default():
            queue = tf.queue.FIFOQueue(10, [tf.float32], [[]])
            runner = v1.train.QueueRunner(queue, [queue.enqueue(tf.constant(3.0))])
            v1.train.add_queue_runner(runner)
            out = tf.multiply(queue.dequeue(name="take"), 2.0, name="twice")
            with v1.Session() as session:
                coordinator = v1.train.Coordinator()
                threads = v1.train.start_queue_runners(session, coordinator)
                answers = [session.run(out) for _ in range(3)]
                coordinator.request_stop()
                coordinator.join(threads, stop_grace_period_secs=5)
            return answers

    plain = program()
    with recorded() as found:
        captured = program()
    assert same(plain, captured)
    close(found, "twice", 6.0)
    close(found, "take", 3.0, step=2)
    assert found.not_steps.get("input pipeline", 0) > 0, found.not_steps


def test_tables_and_functions_of_python_are_recorded() -> None:
    def build():
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1, 2], [10, 20], tf.int64, tf.int64), -1)
        keys = v1.placeholder(tf.int64, [3], name="keys")
        found = table.lookup(keys, name="looked")
        return v1.py_func(lambda a: a + 1, [found], tf.int64, name="python"), {keys: [1, 2, 3]}

    found, answers = both(build)
    assert list(answers[0]) == [11, 21, 0], answers[0]
    assert list(found.value("python")) == [11, 21, 0]


def test_a_finalised_graph_is_recorded() -> None:
    def build():
        x, feed = x_fed()
        y = tf.square(x, name="square")
        return y, feed

    with tf.Graph().as_default() as graph:
        fetches, feed = build()
        graph.finalize()
        with recorded() as found, v1.Session(graph=graph) as session:
            session.run(fetches, feed)
    close(found, "square", X * X)


def test_fused_operators_keep_their_names() -> None:
    def build():
        image = v1.placeholder(tf.float32, [2, 8, 8, 3], name="image")
        kernel = tf.constant(np.random.default_rng(1).normal(size=(3, 3, 3, 4)).astype(np.float32))
        h = tf.nn.relu(
            tf.nn.bias_add(v1.nn.conv2d(image, kernel, 1, "SAME", name="conv"), np.ones(4, np.float32), name="bias"),
            name="relu",
        )
        h = tf.reshape(h, [2, 256])
        w = tf.constant(np.random.default_rng(2).normal(size=(256, 5)).astype(np.float32))
        return tf.nn.relu(
            tf.nn.bias_add(tf.matmul(h, w, name="mm"), np.ones(5, np.float32), name="bias2"), name="relu2"
        ), {image: np.random.default_rng(3).normal(size=(2, 8, 8, 3)).astype(np.float32)}

    found, answers = both(build)
    for name in ("conv", "bias", "relu", "mm", "bias2", "relu2"):
        assert len(found.values(name)) == 1, name
    assert np.allclose(found.value("conv") + 1, found.value("bias"))
    assert np.allclose(np.maximum(found.value("bias2"), 0), answers[0], 1e-5)


def test_operators_of_a_second_device_are_recorded() -> None:
    def program():
        with tf.Graph().as_default():
            x = v1.placeholder(tf.float32, [None, 8], "x")
            with tf.device("/cpu:1"):
                there = tf.nn.relu(tf.matmul(x, tf.ones([8, 8]), name="product"), name="there")
            back = tf.reduce_sum(tf.sin(there, name="here"), name="total")
            with v1.Session(config=v1.ConfigProto(device_count={"CPU": 2})) as session:
                return session.run(back, {x: X})

    plain = program()
    with recorded() as found:
        captured = program()
    assert plain == captured
    devices = {op.op_name: op.arguments.get("device", "") for op in found.ops()}
    assert devices["there"] == devices["product"] == "CPU:1", devices
    assert devices["here"] == devices["total"] == "", devices
    close(found, "there", np.maximum(X @ np.ones((8, 8)), 0))
    close(found, "here", np.maximum(X @ np.ones((8, 8)), 0), io="input")
