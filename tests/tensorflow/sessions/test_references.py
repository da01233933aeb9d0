"""Reference variables: operators that share their memory see an update, with and without capture."""

# The programs of the cases are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc"

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from tests.tensorflow.sessions.recording import recorded, same, v1

v1.disable_eager_execution()
v1.disable_control_flow_v2()
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
