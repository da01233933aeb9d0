"""Runs in parts (`partial_run`): the answers are those of a plain program, and the dump contains what each part computed."""

# The programs of the cases are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from opdump.plan import StepSet
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


def three_parts_and_a_variable(session):
    """Another run assigns the variable between two parts; the next part reads the same value as in the plain program."""
    x, y, z = (v1.placeholder(tf.float32, [4, 4], name) for name in "xyz")
    weight = v1.get_variable("weight", initializer=tf.constant(A), use_resource=True)
    grown = weight.assign_add(tf.ones([4, 4]))
    session.run(v1.global_variables_initializer())
    one = tf.matmul(x, weight.read_value(), name="one")
    two = tf.nn.relu(one + y, name="two")
    with tf.control_dependencies([two]):
        three = tf.reduce_sum(tf.matmul(z, weight.read_value()), 0, name="three")
    handle = session.partial_run_setup([one, two, three, grown.op], [x, y, z])
    found = [session.partial_run(handle, one, {x: A})]
    session.run(grown)
    found.append(session.partial_run(handle, two, {y: found[0]}))
    session.run(grown)
    found.append(session.partial_run(handle, three, {z: found[1]}))
    return [*found, session.run(weight)]


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


def branches(session):
    x, y = v1.placeholder(tf.float32, [4, 4], "x"), v1.placeholder(tf.float32, [4, 4], "y")
    low = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.exp(x), lambda: tf.sin(x), name="chosen")
    loop = tf.while_loop(lambda i, _: i < 3, lambda i, each: (i + 1, tf.matmul(each, y)), (0, low), name="loop")[1]
    handle = session.partial_run_setup([low, loop], [x, y])
    return [session.partial_run(handle, low, {x: A}), session.partial_run(handle, loop, {y: B})]


PROGRAMS = [two_parts, three_parts_and_a_variable, random_numbers, queue_between_the_parts, branches]


def outcome(program):
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(7)
        return program(session)


@pytest.mark.parametrize("control_flow", ["v1", "v2"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_answers_are_the_same(program, control_flow) -> None:
    (v1.enable_control_flow_v2 if control_flow == "v2" else v1.disable_control_flow_v2)()
    try:
        plain = outcome(program)
        with recorded() as found:
            captured = outcome(program)
    finally:
        v1.disable_control_flow_v2()
    assert same(plain, captured)
    assert [step for _, step in found.steps()] == [*range({two_parts: 2, random_numbers: 3}.get(program, 1))] + (
        [0, 1] if program is three_parts_and_a_variable else []
    )


def test_every_operator_of_each_part_is_there() -> None:
    with recorded() as found:
        half, total, *_ = outcome(two_parts)
    assert np.array_equal(found.value("hidden"), half)
    assert found.value("result") == total
    assert np.allclose(found.value("product"), A @ A, 1e-5)
    assert np.array_equal(found.value("later", io="input", slot=1), half * 2.0)
    assert {name for name, reason in found.skips().items() if reason == "not observed"} == set()
    assert found.capture.notes == []


def test_operators_of_a_part_that_cannot_be_fetched_are_named() -> None:
    with recorded() as found:
        outcome(branches)
    assert found.skips()["chosen/Exp"] == "not observed"
    assert any("chosen/Exp:0" in note for note in found.capture.notes)


def test_only_the_wanted_steps_are_filed() -> None:
    with recorded(StepSet.of(1)) as found:
        captured = outcome(random_numbers)
    assert same(captured, outcome(random_numbers))
    assert [step for _, step in found.steps()] == [1]
    assert np.array_equal(found.value("both", 1), captured[3])


def test_a_run_that_stops_between_its_parts_is_filed() -> None:
    def program(session):
        first, second = v1.placeholder(tf.float32, [4, 4], "first"), v1.placeholder(tf.float32, None, "second")
        hidden = tf.sigmoid(first, name="hidden")
        result = tf.matmul(hidden, second, name="result")
        for _ in range(2):
            handle = session.partial_run_setup([hidden, result], [first, second])
            session.partial_run(handle, hidden, {first: A})
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.partial_run(handle, result, {second: np.ones((3, 3), np.float32)})

    with recorded() as found:
        outcome(program)
    for step in (0, 1):
        assert np.allclose(found.value("hidden", step), 1 / (1 + np.exp(-A)), 1e-5)
        assert np.array_equal(found.value("result", step, io="input"), found.value("hidden", step))
        assert found.values("result", step) == []


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
