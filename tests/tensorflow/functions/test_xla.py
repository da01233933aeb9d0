"""Functions compiled by XLA under capture: one operator, and the same bits as without a capture."""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc"

from __future__ import annotations

import tensorflow as tf

from tests.tensorflow.functions.recording import recorded
from tests.tensorflow.functions.xla_programs import X, in_session, launches, network, trained, training, types
from tests.tensorflow.sessions.recording import same

v1 = tf.compat.v1
SEE = "to see"


def told_once(recording, *beginnings):
    """Assert which warnings say what to do."""
    notes = recording.recorder.warnings
    assert [note.partition(" ")[0] for note in notes if SEE in note] == list(beginnings), notes


def test_xla_computes_different_bits() -> None:
    """The tests below detect by these bits whether XLA compiled."""
    x = tf.constant(X)
    assert not same(tf.function(network)(x).numpy(), tf.function(network, jit_compile=True)(x).numpy())


def test_a_compiled_function_is_one_operator() -> None:
    run = tf.function(network, jit_compile=True)
    plain = run(tf.constant(X)).numpy()
    with recorded() as recording:
        results = [run(tf.constant(X)).numpy() for _ in range(2)]
    assert all(same(each, plain) for each in results)
    first, second = launches(recording)
    assert [(op.op_name, op.step, op.skip) for op in (first, second)] == [("network", 0, ""), ("network", 1, "")]
    assert same(recording.array(first, "input"), X)
    assert same(recording.array(first), plain)
    assert first.stack[0].code == "results = [run(tf.constant(X)).numpy() for _ in range(2)]"
    assert types(recording) == {"XlaLaunch"}
    told_once(recording, "network")
    assert (
        recording.recorder.tally.executed
        == recording.recorder.tally.captured + recording.recorder.tally.skipped.total()
    )


def test_within_another_function_it_is_one_operator_among_the_others() -> None:
    compiled = tf.function(network, jit_compile=True)

    @tf.function
    def run(x):
        y = tf.nn.softplus(x) * 2.0
        z = compiled(y) if tf.reduce_sum(y) > 0 else y[0]
        for _ in tf.range(2):
            z = compiled(tf.linalg.diag(z))
        return tf.reduce_sum(tf.exp(z / 100.0)), compiled(y)

    plain = [each.numpy() for each in run(tf.constant(X))]
    with recorded() as recording:
        answers = [each.numpy() for each in run(tf.constant(X))]
    after = [each.numpy() for each in run(tf.constant(X))]
    assert same(answers, plain)
    assert same(after, plain)
    found = launches(recording)
    assert len(found) == 4, [op.op_name for op in recording.writer.ops]
    assert {"Softplus", "Exp", "Sum"} <= types(recording)
    assert not {"Tanh", "Softmax", "Log1p"} & {op.op_type for op in recording.writer.ops}
    assert any(same(recording.array(op), plain[1]) for op in found)
    assert all(recording.array(op, "input").shape == (64, 64) for op in found)
    assert all("compiled(" in op.stack[0].code for op in found), [op.stack[0] for op in found]
    told = [note for note in recording.recorder.warnings if SEE in note]
    assert 1 <= len(told) <= 3, told


def test_a_gradient_from_outside_is_one_more() -> None:
    weight = tf.Variable(X)
    run = tf.function(lambda x: tf.reduce_sum(network(x * weight)), jit_compile=True)

    def gradient():
        with tf.GradientTape() as tape:
            loss = run(tf.constant(X))
        return loss.numpy(), tape.gradient(loss, weight).numpy()

    plain = gradient()
    with recorded() as recording:
        answer = gradient()
    assert same(answer, plain)
    names = [op.op_name for op in launches(recording)]
    assert len(names) == 2, names
    assert names[1] == f"gradients/{names[0]}", names
    assert same(recording.array(launches(recording)[1]).reshape(-1)[-X.size :].reshape(X.shape), plain[1])


def test_only_dumped_steps_are_looked_at() -> None:
    run = tf.function(network, jit_compile=True)
    with recorded(steps="1") as recording:
        for _ in range(3):
            run(tf.constant(X))
    assert [op.step for op in launches(recording)] == [1]


def test_a_compiled_function_that_only_changes_variables_is_skipped() -> None:
    weight = tf.Variable(X)

    @tf.function(jit_compile=True)
    def update():
        weight.assign(tf.sin(weight))

    with recorded() as recording:
        update()
    assert [(op.op_name, op.skip) for op in recording.skipped(op_type="XlaLaunch")] == [("update", "not observed")]
    assert same(weight.numpy(), tf.function(tf.sin, jit_compile=True)(X).numpy())


def test_keras_trains_on_with_the_same_bits() -> None:
    plain = trained(jit_compile=True)
    assert not same(plain[1], trained(jit_compile=False)[1])
    with recorded() as recording:
        captured = trained(jit_compile=True)
    assert same(captured, plain)
    found = launches(recording)
    assert len(found) >= 8 + 4, [op.op_name for op in recording.writer.ops]
    given = [op for op in found if any(same(recording.array(op, "input"), X[at : at + 16]) for at in (0, 16, 32, 48))]
    assert len(given) >= 4
    functions = {"one_step_on_data", "one_step_on_data_distributed", "run_step"}  # in Keras 3, and in 2.15
    notes = recording.recorder.warnings
    told = {note.partition(" ")[0] for note in notes if "jit_compile=False" in note}
    assert told, notes
    assert told <= functions, notes


def test_all_operators_are_recorded_if_xla_does_not_compile_for_cpus() -> None:
    """`set_jit` and `global_jit_level` apply to GPUs, unless a flag extends them."""
    tf.config.optimizer.set_jit(True)
    try:
        run = tf.function(network)
        plain = run(tf.constant(X)).numpy()
        with recorded() as recording:
            answer = run(tf.constant(X)).numpy()
    finally:
        tf.config.optimizer.set_jit(False)
    assert same(answer, plain)
    assert {"MatMul", "Tanh", "Softmax"} <= types(recording)
    assert recording.recorder.warnings == []


def test_a_compiled_function_in_a_session_is_one_operator() -> None:
    for streams in (False, True):
        found, answers = in_session(
            lambda x: tf.identity(tf.function(network, jit_compile=True)(tf.nn.softplus(x)), name="y"), streams=streams
        )
        (op, *_) = [op for op in found.ops() if op.op_type == "XlaLaunch"]
        assert same(found.value(op.op_name, 0), answers[0])
        assert found.value(op.op_name, 0, "input").shape == X.shape
        assert "jit_compile=True" in op.stack[0].code
        assert not [name for name in found.skips() if name.startswith(f"{op.op_name}/")]
        assert any(op.op_name in note and SEE in note for note in found.capture.recorder.warnings)


def test_a_session_with_a_jit_level_is_recorded_if_xla_does_not_compile_for_cpus() -> None:
    found, _ = in_session(training, level=1)
    assert {"Tanh", "MatMul"} <= {op.op_type for op in found.ops()}


def test_operators_that_are_marked_for_xla_are_left_to_it() -> None:
    def scoped(x):
        with v1.xla.experimental.jit_scope():
            return tf.identity(network(x), name="y")

    found, answers = in_session(scoped)
    assert same(found.value("y"), answers[0])
    assert found.skips()["Tanh"] == "not observed"
    assert sum("XLA" in note for note in found.capture.recorder.warnings) == 1
