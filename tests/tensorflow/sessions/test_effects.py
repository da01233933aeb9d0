"""No effect of a session outside of its graph happens more often under capture."""

# The programs are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc"

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from opdump.plan import StepSet
from tests.tensorflow.effects import X, hold_equal, host, ran
from tests.tensorflow.sessions.recording import recorded, v1

v1.disable_eager_execution()
PROGRAMS: list[Any] = []
WAYS: dict[str, dict[str, Any]] = {
    "statistics": {"saved_data": "statistic"},
    "full": {"saved_data": "full"},
    "one step": {"saved_data": "full", "steps": StepSet.of(1)},
    "overflow": {"captures": "overflow"},
    "streams": {"streams": True},
}


def program(function):
    PROGRAMS.append(function)
    return function


@program
def callbacks_in_a_session(counts, folder):
    x = v1.placeholder(tf.float32, [2])
    y = host(counts, "numpy", x) + host(counts, "stateless", x, stateful=False)
    z = tf.nn.relu(y / tf.sqrt(host(counts, "constant", tf.constant(X), stateful=False)) * 3.0)
    y += tf.cond(tf.reduce_sum(x) > 0, lambda: host(counts, "branch", y, stateful=False), lambda: y)
    y += tf.map_fn(lambda each: host(counts, "map", each, stateful=False), x)
    y += tf.while_loop(lambda n, _: n < 3, lambda n, a: (n + 1, host(counts, "loop", a, stateful=False)), [0, y])[1]
    with v1.Session() as session:
        return [session.run([y, z], {x: X + number}) for number in range(3)]


@program
def functions_in_a_session(counts, folder):
    @tf.function
    def inner(x):
        return host(counts, "inner", x, stateful=False) * tf.constant(2.0)

    x = v1.placeholder(tf.float32, [2])
    y = tf.nn.relu(inner(x) / tf.sqrt(inner(tf.constant(X))) * 3.0)
    with v1.Session() as session:
        return [session.run(y, {x: X + number}) for number in range(3)]


@program
def training_in_a_session(counts, folder):
    x, printed = v1.placeholder(tf.float32, [2]), folder / "printed"
    weight = v1.get_variable("weight", initializer=X)
    loss = tf.reduce_sum(host(counts, "data", x, stateful=False) * weight)
    queue = tf.queue.FIFOQueue(20, [tf.float32])
    with tf.control_dependencies([tf.print("printed", loss, output_stream=f"file://{printed}"), queue.enqueue(loss)]):
        update = v1.train.AdamOptimizer(0.1).minimize(loss)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        answers = [session.run([update, loss], {x: X * number})[1] for number in range(4)]
        counts["queued"] = int(session.run(queue.size()))
        counts["lines"] = printed.read_text().count("printed")
        return [*answers, session.run(weight)]


@pytest.mark.parametrize("program", PROGRAMS)
def test_effects_happen_as_often_as_without_capture(program, tmp_path) -> None:
    plain = ran(program, tmp_path / "plain")
    for way, plan in WAYS.items():
        v1.reset_default_graph()
        with recorded(**plan) as found:
            captured = ran(program, tmp_path / way)
        hold_equal(plain, captured)
        assert way == "overflow" or found.ops(), way
