"""What a capture of sessions writes for constructs of graphs, compared with numpy and with plain runs."""

# The programs of the cases are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc"

from __future__ import annotations

from functools import partial
from typing import Any

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


def test_the_branch_that_is_taken_is_recorded_and_the_other_listed() -> None:
    def build():
        x, feed = x_fed()
        y = v1.cond(
            tf.reduce_sum(x) > 1e6,
            lambda: tf.exp(x, name="untaken_exp"),
            lambda: tf.sin(tf.multiply(x, 3.0, name="taken_mul"), name="taken_sin"),
        )
        return tf.reduce_sum(y, name="total"), feed

    found, _ = both(build)
    close(found, "cond/taken_sin", np.sin(X * 3))
    close(found, "cond/taken_mul", X, io="input", slot=0)
    assert found.skips()["cond/untaken_exp"] == "not executed", found.skips()


def test_nested_branches_and_their_gradients_are_recorded() -> None:
    def build():
        x, feed = x_fed()
        w = v1.get_variable("w", initializer=np.ones(8, np.float32) * 0.5)
        p = x * w

        def inner() -> Any:
            return v1.cond(tf.reduce_sum(p) < 1e6, lambda: tf.tanh(p, name="inner_tanh"), lambda: p / 3.0)

        y = v1.cond(tf.reduce_sum(p) > -1e6, inner, lambda: tf.exp(p, name="outer_exp"))
        loss = tf.reduce_sum(y)
        return [v1.train.GradientDescentOptimizer(0.1).minimize(loss), loss], feed

    found, answers = both(build)
    close(found, "cond/cond/inner_tanh", np.tanh(X * 0.5))
    assert found.skips()["cond/outer_exp"] == "not executed"
    gradient = (1 - np.tanh(X * 0.5) ** 2) * X
    update = found.ops("GradientDescent/update_w/ResourceApplyGradientDescent", 0)
    assert len(update) == 1, update
    close(found, update[0].op_name, gradient.sum(0), io="input", slot=2)
    assert answers[0][1] != answers[1][1]


def test_each_iteration_of_a_loop_is_recorded() -> None:
    def build():
        x, feed = x_fed()
        return v1.while_loop(lambda i, a: i < 4, lambda i, a: (i + 1, tf.sin(a, name="body_sin")), [0, x])[1], feed

    found, _ = both(build)
    value, expected = X, []
    for _ in range(4):
        value = np.sin(value)
        expected.append(value)
    seen = found.values("while/body_sin")
    assert len(seen) == 4, seen
    assert all(np.allclose(a, b, 1e-5) for a, b in zip(seen, expected, strict=False)), seen
    read = found.values("while/body_sin", io="input")
    assert len(read) == 4, read
    assert all(np.allclose(a, b, 1e-5) for a, b in zip(read, [X, *expected], strict=False)), read
    occurrences = [op.occurrence for op in found.ops("while/body_sin", 0)]
    assert occurrences == [0, 1, 2, 3], occurrences


def test_each_iteration_of_nested_loops_is_recorded() -> None:
    def build():
        x, feed = x_fed()

        def inner(a):
            return v1.while_loop(lambda j, b: j < 2, lambda j, b: (j + 1, tf.add(b, 1.0, name="inner")), [0, a])[1]

        return v1.while_loop(
            lambda i, a: i < 3, lambda i, a: (i + 1, tf.multiply(inner(a), 2.0, name="outer")), [0, x]
        )[1], feed

    found, _ = both(build)
    value, inner, outer = X, [], []
    for _ in range(3):
        for _ in range(2):
            value = value + 1
            inner.append(value)
        value = value * 2
        outer.append(value)
    seen = found.values("while/while/inner")
    assert len(seen) == 6, len(seen)
    assert all(np.allclose(a, b, 1e-5) for a, b in zip(seen, inner, strict=False)), len(seen)
    seen = found.values("while/outer")
    assert len(seen) == 3, len(seen)
    assert all(np.allclose(a, b, 1e-5) for a, b in zip(seen, outer, strict=False)), len(seen)


def test_branches_within_a_loop_are_recorded_as_they_were_taken() -> None:
    def build():
        x, feed = x_fed()
        w = v1.get_variable("w", initializer=np.ones(8, np.float32) * 0.5)

        def body(i, a):
            return i + 1, v1.cond(
                tf.equal(i % 2, 0), lambda: tf.sin(a, name="even"), lambda: tf.multiply(a, w, name="odd")
            )

        loss = tf.reduce_sum(v1.while_loop(lambda i, a: i < 4, body, [0, x])[1], name="loss")
        return [v1.train.AdamOptimizer(0.1).minimize(loss), loss], feed

    found, _ = both(build)
    even, odd = found.values("while/cond/even"), found.values("while/cond/odd")
    first = np.sin(X)
    second = first * 0.5
    third = np.sin(second)
    assert len(even) == 2, even
    assert np.allclose(even[0], first, 1e-5), even
    assert np.allclose(even[1], third, 1e-5), even
    assert len(odd) == 2, odd
    assert np.allclose(odd[0], second, 1e-5), odd
    assert np.allclose(odd[1], third * 0.5, 1e-5), odd


def test_a_loop_within_a_branch_is_recorded() -> None:
    def build():
        x, feed = x_fed()

        def loop():
            return v1.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, tf.cos(a, name="step")), [0, x])[1]

        return v1.cond(tf.reduce_sum(x) > -1e6, loop, lambda: tf.exp(x, name="other")), feed

    found, _ = both(build)
    seen = found.values("cond/while/step")
    assert len(seen) == 3, seen
    assert np.allclose(seen[2], np.cos(np.cos(np.cos(X))), 1e-5), seen
    assert found.skips()["cond/other"] == "not executed"


def test_a_loop_that_fills_a_tensor_array_is_recorded() -> None:
    def build():
        x, feed = x_fed()
        array = tf.TensorArray(tf.float32, 3)
        loop = v1.while_loop(
            lambda i, a: i < 3, lambda i, a: (i + 1, a.write(i, x * tf.cast(i, tf.float32))), [0, array]
        )
        return tf.reduce_sum(loop[1].stack(name="stacked"), name="total"), feed

    found, _ = both(build)
    seen = found.values("while/mul")
    assert len(seen) == 3, len(seen)
    assert all(np.allclose(a, X * i) for i, a in enumerate(seen)), len(seen)
    close(found, "total", (X * 3).sum(), tolerance=1e-4)


def numbers():
    for number in range(20):
        yield np.float32(number)


def data():
    return (
        tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([], tf.float32))
        .map(tf.sin, num_parallel_calls=2)
        .flat_map(lambda x: tf.data.Dataset.from_tensors(x).map(tf.exp))
        .batch(2)
    )


def initialisable():
    iterator = v1.data.make_initializable_iterator(data())

    def start(session):
        session.run(iterator.initializer)
        return {}

    return iterator, start


def one_for_several():
    iterator = v1.data.Iterator.from_structure(tf.float32, [None])
    initializer = iterator.make_initializer(data())

    def start(session):
        session.run(initializer)
        return {}

    return iterator, start


def by_name():
    own = v1.data.make_initializable_iterator(data())
    handle = v1.placeholder(tf.string, [], name="which")

    def start(session):
        session.run(own.initializer)
        return {handle: session.run(own.string_handle())}

    return v1.data.Iterator.from_string_handle(handle, tf.float32, [None]), start


def listed(found, why="not observed"):
    return {name for name, reason in found.skips().items() if reason == why}


def test_functions_behind_iterators_are_listed() -> None:
    for way in (initialisable, one_for_several, by_name):
        v1.reset_default_graph()
        iterator, start = way()
        doubled = iterator.get_next() * 2.0

        def program(start=start, doubled=doubled):
            with v1.Session() as session:
                fed = start(session)
                return [session.run(doubled, fed) for _ in range(3)]

        plain = program()
        with recorded() as found:
            answers = program()
        assert same(plain, answers), (plain, answers)
        names = listed(found)
        types = {name.rpartition("/")[2].partition("_")[0] for name in names}
        assert {"Sin", "Exp"} <= types, (way.__name__, names)
        assert not [name for name in names if "PyFunc" in name or "Dataset" in name.rpartition("/")[2]], names


def test_functions_of_a_data_set_that_is_read_once_are_listed() -> None:
    read = v1.data.make_one_shot_iterator(tf.data.Dataset.range(4).map(lambda x: x * 3)).get_next()
    with recorded() as found, v1.Session() as session:
        assert [session.run(read + 1) for _ in range(2)] == [1, 4]
    assert any(name.endswith("/mul") for name in listed(found)), found.skips()


def test_functions_of_a_data_set_that_is_reduced_are_listed() -> None:
    total = tf.data.Dataset.range(4).map(lambda x: x * 3).reduce(np.int64(0), lambda state, each: state - each)
    with recorded() as found, v1.Session() as session:
        assert session.run(total) == -18
    types = {name.rpartition("/")[2] for name in listed(found)}
    assert {"mul", "sub"} <= types, found.skips()


def test_a_step_without_data_sets_lists_none() -> None:
    _, start = initialisable()
    y = tf.constant([1.0, 2.0]) * 3.0
    with recorded() as found, v1.Session() as session:
        start(session)
        session.run(y)
    assert not listed(found), found.skips()


START = np.array([1.0, 2.0, 3.0], np.float32)
ALIASES = {
    "identity": tf.identity,
    "two identities": lambda v: tf.identity(tf.identity(v)),
    "stop_gradient": tf.stop_gradient,
    "reshape": lambda v: tf.reshape(v, [3, 1]),
    "expand_dims": lambda v: tf.expand_dims(v, 0),
    "squeeze": tf.squeeze,
    "slice": lambda v: v[:2],
    "split": lambda v: tf.split(v, 1)[0],
    "identity_n": lambda v: tf.identity_n([v])[0],
    "concat": lambda v: tf.concat([v], 0),
    "bitcast": lambda v: tf.bitcast(v, tf.int32),
    "pad": lambda v: tf.pad(v, [[0, 0]]),
    "reverse": lambda v: tf.reverse(v, []),
    "sum over nothing": lambda v: tf.reduce_sum(v, []),
    "guarantee_const": tf.guarantee_const,
    "check_numerics": lambda v: tf.debugging.check_numerics(v, "bad"),
    "cond": lambda v: tf.identity(v1.cond(tf.constant([1.0])[0] > 0, lambda: tf.identity(v), lambda: v * 2)),
    "loop": lambda v: v1.while_loop(lambda i, _: i < 2, lambda i, a: (i + 1, a), [0, v])[1],
}
WAYS: tuple[dict[str, Any], ...] = ({}, {"streams": True}, {"inputs": False})


def _compare(program, *told, **way):
    plain = program()
    assert all(same(plain, program()) for _ in range(2)), (*told, "the program itself is not the same twice")
    with recorded(**way) as found:
        captured = program()
    assert same(plain, captured), (*told, way, plain, captured)
    return found


def _updated(fetches):
    """The answers of a session for `fetches(v, update)`, where `update` adds 10 to a reference variable v."""
    with tf.Graph().as_default():
        v = v1.get_variable("v", initializer=START, use_resource=False)
        with v1.Session() as session:
            asked = fetches(v, lambda: v.assign_add([10.0] * 3))
            session.run(v1.global_variables_initializer())
            return [session.run(asked) for _ in range(2)]


def test_what_is_fetched_beside_an_update_is_the_same() -> None:
    def fetches(alias, v, update):
        early = alias(v)
        with tf.control_dependencies([early]):
            return early, update()

    for name, alias in ALIASES.items():
        for way in WAYS:
            _compare(partial(_updated, partial(fetches, alias)), name, **way)


def test_what_reads_shared_memory_after_an_update_sees_it() -> None:
    def fetches(alias, v, update):
        early = alias(v)
        before = tf.multiply(tf.cast(early, tf.float32), 2.0, name="before")
        with tf.control_dependencies([before]):
            updated = update()
        with tf.control_dependencies([updated]):
            return before, tf.multiply(tf.cast(early, tf.float32), 3.0, name="after")

    for name, alias in ALIASES.items():
        for way in WAYS:
            found = _compare(partial(_updated, partial(fetches, alias)), name, **way)
            if name not in ("bitcast", "slice"):
                assert np.array_equal(found.value("before").ravel(), START * 2), (name, way, found.value("before"))


def test_training_that_fetches_its_weights_is_the_same() -> None:
    def program(seen):
        with tf.Graph().as_default():
            x = v1.placeholder(tf.float32, [4, 3])
            w = v1.get_variable("w", initializer=np.ones((3, 2), np.float32), use_resource=False)
            loss = tf.reduce_mean(tf.square(tf.matmul(x, w)))
            asked = [v1.train.GradientDescentOptimizer(0.1).minimize(loss), loss, seen(w)]
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                feed = {x: np.random.default_rng(0).normal(size=(4, 3))}
                return [session.run(asked, feed)[1:] for _ in range(4)]

    for name in ("identity", "stop_gradient", "expand_dims", "split", "check_numerics"):
        for way in WAYS:
            _compare(partial(program, ALIASES[name]), name, **way)
