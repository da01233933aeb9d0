"""What a capture of sessions writes for branches, loops and functions in graphs, compared with numpy and with plain runs."""

# The programs of the cases are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc"

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.tensorflow.sessions.both_ways import X, both, close, x_fed
from tests.tensorflow.sessions.recording import v1

v1.disable_eager_execution()
v1.disable_control_flow_v2()


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
