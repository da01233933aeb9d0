"""Runs in parts (`partial_run`) are not recorded, which a note says; the answers are those of a plain program."""

# The programs of the cases are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.tensorflow.sessions.recording import recorded, same, v1

A = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
B = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)


def two_parts(session, runs=2):
    first, second = v1.placeholder(tf.float32, [4, 4], "first"), v1.placeholder(tf.float32, [4, 4], "second")
    hidden = tf.sigmoid(tf.matmul(first, first, name="product") + 1.0, name="hidden")
    result = tf.reduce_sum(tf.matmul(hidden, second, name="later"), name="result")
    found = []
    for _ in range(runs):
        handle = session.partial_run_setup([hidden, result], [first, second])
        half = session.partial_run(handle, hidden, {first: A})
        found += [half, session.partial_run(handle, result, {second: half * 2.0})]
    return found


def random_numbers(session):
    x, y = v1.placeholder(tf.float32, [4, 4], "x"), v1.placeholder(tf.float32, [4, 4], "y")
    noise = x + v1.random_normal([4, 4], seed=3, name="noise")
    both = tf.matmul(noise, y + v1.random_uniform([4, 4], seed=4, name="more"), name="both")
    found = []
    for _ in range(3):
        handle = session.partial_run_setup([noise, both], [x, y])
        found += [session.partial_run(handle, noise, {x: A}), session.partial_run(handle, both, {y: B})]
    return found


def queue_between_the_parts(session):
    """The second part dequeues what the program enqueues after the first; nothing may wait for it earlier."""
    x, y = v1.placeholder(tf.float32, [4, 4], "x"), v1.placeholder(tf.float32, [4, 4], "y")
    queue = tf.queue.FIFOQueue(4, [tf.float32], [[4, 4]], name="queue")
    put = queue.enqueue([x * 3.0])
    one = tf.tanh(x, name="one")
    two = tf.matmul(queue.dequeue(name="taken"), y, name="two")
    handle = session.partial_run_setup([one, two], [x, y])
    found = [session.partial_run(handle, one, {x: A})]
    session.run(put, {x: B})
    return [*found, session.partial_run(handle, two, {y: found[0]})]


PROGRAMS = [two_parts, random_numbers, queue_between_the_parts]


def outcome(program):
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(7)
        return program(session)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_answers_are_the_same(program) -> None:
    plain = outcome(program)
    with recorded() as found:
        captured = outcome(program)
    assert same(plain, captured)
    assert any("partial_run" in note for note in found.capture.notes)


def test_errors_are_those_of_a_plain_program() -> None:
    def program(session):
        x = v1.placeholder(tf.float32, [4, 4], "x")
        doubled = x * 2.0

        def text_of(call):
            try:
                call()
            except (tf.errors.OpError, ValueError, RuntimeError) as error:
                return type(error), str(error).splitlines()[0].split(" at 0x")[0]
            return None

        calls = (
            lambda: session.partial_run_setup([], [x]),
            lambda: session.partial_run("no handle", doubled, {x: A}),
            lambda: session.partial_run(session.partial_run_setup([doubled], [x]), doubled.op, {x: A}),
            lambda: session.partial_run(session.partial_run_setup([doubled], [x]), doubled),
        )
        return [text_of(call) for call in calls]

    plain = outcome(program)
    with recorded():
        assert outcome(program) == plain
    assert None not in plain[1:]
