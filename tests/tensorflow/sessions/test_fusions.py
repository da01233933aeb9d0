"""Operators that the runtime fuses or removes if nothing reads the intermediate values."""

# The programs of the cases are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc"

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import tensorflow as tf

from tests.tensorflow.sessions.recording import recorded, same, v1

v1.disable_eager_execution()
v1.disable_control_flow_v2()


def test_fused_layers_give_the_same_bits() -> None:
    """Products fused with a bias differ in their last bits from products that are not fused: single rows and columns, constants."""
    differ = []
    for rows, columns, adds, stays in product((1, 37), (1, 70), (tf.nn.bias_add, tf.add), (False, True)):
        program = partial(_layer, rows, columns, adds, stays)
        plain = program()
        with recorded() as found:
            captured = program()
        if not same(plain, captured):
            differ.append((rows, columns, adds.__name__, stays))
        (losses, (x, w, b), _) = captured
        assert np.allclose(found.value("product"), x @ w, 1e-4, 1e-3), (rows, columns)
        assert np.allclose(found.value("sum"), x @ w + b, 1e-4, 1e-3), (rows, columns)
        assert "product" not in found.skips(), found.skips()
        assert len(losses) == 3
    assert not differ, differ


def _layer(rows, columns, adds, stays):
    """The losses of three steps of a dense layer, the inputs of its first step, and the final variables."""
    random = np.random.default_rng(0)
    with tf.Graph().as_default(), v1.variable_scope("", use_resource=True):
        x = v1.placeholder(tf.float32, [None, 200], "x")
        weights = (random.normal(size=(200, columns)) * 0.5).astype(np.float32)
        w = tf.constant(weights) if stays else v1.get_variable("w", initializer=weights)
        b = v1.get_variable("b", initializer=np.linspace(0.1, 1, columns, dtype=np.float32))
        y = adds(tf.matmul(x, w, name="product"), b, name="sum")
        loss = tf.reduce_mean(tf.square(tf.nn.relu(y) - 0.3))
        train = v1.train.GradientDescentOptimizer(0.01).minimize(loss)
        images = [random.normal(size=(rows, 200)).astype(np.float32) for _ in range(3)]
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            read = images[0], session.run(tf.identity(w)), session.run(tf.identity(b))
            losses = [session.run([train, loss], {x: image})[1] for image in images]
            return losses, read, session.run(v1.global_variables())


def test_fused_layers_of_changing_shapes_give_the_same_bits() -> None:
    """Whether products are fused depends on the number of rows: fed rows, rows of a dataset, rows that the data determine."""
    for adds, given in product((tf.nn.bias_add, tf.add), (_fed_rows, _rows_of_a_dataset, _rows_by_their_values)):
        program = partial(_of_changing_rows, adds, given)
        plain = program()
        with recorded() as found:
            captured = program()
        assert same(plain, captured), (adds.__name__, given.__name__)
        counts = [found.value("product", step).shape[0] for step in range(4)]
        assert counts == [37, 1, 37, 1], counts


def _of_changing_rows(adds, given):
    random = np.random.default_rng(0)
    batches = [random.normal(size=(rows, 200)).astype(np.float32) for rows in (37, 1, 37, 1)]
    with tf.Graph().as_default(), v1.variable_scope("", use_resource=True):
        x, feeds = given(batches)
        w = v1.get_variable("w", initializer=(random.normal(size=(200, 70)) * 0.5).astype(np.float32))
        b = v1.get_variable("b", initializer=np.linspace(0.1, 1, 70, dtype=np.float32))
        loss = tf.reduce_mean(tf.square(tf.nn.relu(adds(tf.matmul(x, w, name="product"), b)) - 0.3))
        train = v1.train.GradientDescentOptimizer(0.01).minimize(loss)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            return [session.run([train, loss], feed)[1] for feed in feeds], session.run(v1.global_variables())


def _fed_rows(batches):
    x = v1.placeholder(tf.float32, [None, 200], "x")
    return x, [{x: batch} for batch in batches]


def _rows_of_a_dataset(batches):
    rows = tf.data.Dataset.from_tensor_slices(np.concatenate(batches[:2])).batch(37).repeat()
    return v1.data.make_one_shot_iterator(rows).get_next(), [{}] * len(batches)


def _rows_by_their_values(batches):
    """Each batch is fed with 37 rows, and rows of zeros are dropped."""
    x = v1.placeholder(tf.float32, [37, 200], "x")
    kept = tf.boolean_mask(x, tf.reduce_any(tf.not_equal(x, 0.0), 1))
    return kept, [{x: np.concatenate([batch, np.zeros((37 - len(batch), 200), np.float32)])} for batch in batches]


def test_a_trial_that_cannot_be_made_leaves_the_program_as_it_was() -> None:
    """A part that does not run alone, or feeds of unknown shape: the program is not changed."""

    def program(dtype, batch, feed):
        random = np.random.default_rng(0)
        with tf.Graph().as_default(), v1.variable_scope("", use_resource=True):
            x = v1.placeholder(dtype, [None, 4, 4, 3], "x")
            w = tf.cast(v1.get_variable("w", initializer=random.normal(size=(3, 3, 3, 8)).astype(np.float32)), dtype)
            b = tf.cast(v1.get_variable("b", initializer=np.ones(8, np.float32)), dtype)
            y = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, w, 1, "SAME"), b))
            read = tf.cast(tf.reduce_sum(y, [1, 2, 3]), tf.float32)
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                values = random.normal(size=(batch, 4, 4, 3)).astype(dtype.as_numpy_dtype)
                try:
                    return [session.run(read, {x: feed(session, values)}) for _ in range(2)]
                except (ValueError, tf.errors.OpError) as error:
                    return type(error).__name__, str(error).splitlines()[0]

    def handle(session, values):
        return session.run(v1.get_session_handle(tf.constant(values)))

    for dtype, batch, feed in (
        (tf.float32, 2, lambda _, values: values),
        (tf.float32, 2, lambda _, values: values.tolist()),
        (tf.bfloat16, 2, lambda _, values: values),
        (tf.float32, 0, lambda _, values: values),
        (tf.float32, 2, handle),
        (tf.float32, 2, lambda _, values: values[:, :, :, :2]),
        (tf.float32, 2, lambda _, values: values[0, 0, 0]),
        (tf.float32, 2, lambda *_: None),
    ):
        plain = program(dtype, batch, feed)
        with recorded():
            captured = program(dtype, batch, feed)
        assert same(plain, captured), (dtype, batch, plain, captured)


def test_what_is_fetched_is_recorded_as_it_was_given() -> None:
    """Even if the runtime would compute a value differently without the fetch."""

    def program():
        with tf.Graph().as_default():
            x = v1.placeholder(tf.float32, [64, 64], "x")
            quotient = tf.divide(x, tf.sqrt(tf.abs(x) + 0.1), name="quotient")
            product_ = tf.multiply(x / 3.0, 7.0, name="product")
            with v1.Session() as session:
                values = np.random.default_rng(0).normal(size=(64, 64))
                return session.run([quotient, product_, quotient + product_], {x: values})

    plain = program()
    ways: tuple[dict[str, Any], ...] = ({}, {"streams": True}, {"inputs": False})
    for way in ways:
        with recorded(**way) as found:
            captured = program()
        assert same(plain, captured), way
        assert same(captured[:2], [found.value("quotient"), found.value("product")]), way


def test_a_call_that_nothing_reads_runs_all_the_same() -> None:
    """A function that a control dependency waits for, and that may have effects."""
    from tensorflow.python.framework import function

    def program():
        with tf.Graph().as_default(), v1.variable_scope("", use_resource=True):
            v = v1.get_variable("v", initializer=np.float32(1))

            @function.Defun(tf.resource, noinline=False)
            def add(handle):
                from tensorflow.python.ops import gen_resource_variable_ops

                gen_resource_variable_ops.assign_add_variable_op(handle, 1.0)
                return tf.constant(1.0)

            called = add(v.handle, name="call")
            with tf.control_dependencies([called]):
                read = tf.add(tf.constant([1.0])[0], 2.0, name="read")
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                return [session.run(read) for _ in range(2)], session.run(v)

    plain = program()
    with recorded() as found:
        captured = program()
    assert same(plain, captured), (plain, captured)
    assert found.skips().get("call", "") != "not executed", found.skips()


def test_gradients_that_nothing_reads_are_not_executed() -> None:
    """The runtime removes them before a run."""

    def program(reads):
        with tf.Graph().as_default(), v1.variable_scope("", use_resource=True):
            x = v1.placeholder(tf.float32, [3, 4], "x")
            w = v1.get_variable("w", initializer=np.ones((4, 2), np.float32))
            loss = tf.reduce_sum(tf.square(tf.matmul(x, w, name="product")))
            train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
            fetches = [train, loss]
            if reads:
                fetches.append("gradients/product_grad/tuple/control_dependency:0")
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                return session.run(fetches, {x: np.ones((3, 4))})[1:], session.run(w)

    for reads in (False, True):
        plain = program(reads)
        with recorded(captures="data") as found:
            captured = program(reads)
        assert same(plain, captured), reads
        of_x, of_w = "gradients/product_grad/MatMul", "gradients/product_grad/MatMul_1"
        assert found.skips().get(of_x, "") == ("" if reads else "not executed"), found.skips()
        assert np.allclose(found.value(of_w), np.full((4, 2), 24.0))
        if reads:
            assert np.allclose(found.value(of_x), np.full((3, 4), 16.0))
