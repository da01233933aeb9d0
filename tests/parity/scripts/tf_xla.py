"""What XLA compiles under capture: one operator, and the same bits as without a capture; one line of JSON for each case.

usage: tf_xla.py asked|flags [case...]      flags: XLA compiles clusters wherever it may, on CPUs too
"""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc"

from __future__ import annotations

import os
import sys
from collections.abc import Callable

os.environ["TF_XLA_FLAGS"] = "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit" if sys.argv[1:2] == ["flags"] else ""

import keras
import numpy as np
import tensorflow as tf

from tests.parity.scripts import tf_functions_cases
from tests.parity.scripts.tf_functions_recording import recorded
from tests.parity.scripts.tf_sessions_harness import recorded as recorded_sessions
from tests.parity.scripts.tf_sessions_harness import same

v1 = tf.compat.v1
ASKED: dict[str, Callable[[], None]] = {}
FLAGS: dict[str, Callable[[], None]] = {}
X = np.random.default_rng(7).normal(size=(64, 64)).astype(np.float32)
SEE = "to see"


def asked(function):
    ASKED[function.__name__] = function
    return function


def flags(function):
    FLAGS[function.__name__] = function
    return function


def network(x):
    """XLA gives other last bits than TensorFlow's own kernels do."""
    hidden = tf.nn.softmax(tf.tanh(tf.matmul(x, x) * 0.1 + 1.0))
    return tf.reduce_sum(tf.math.log1p(hidden) * tf.sigmoid(x), axis=1)


def launches(recording):
    return recording.ops(op_type="XlaLaunch")


def types(recording):
    return {op.op_type for op in recording.ops()}


def told_once(recording, *beginnings):
    """The warnings, each of which says what to do."""
    notes = recording.recorder.warnings
    assert [note.partition(" ")[0] for note in notes if SEE in note] == list(beginnings), notes


@asked
def xla_computes_otherwise() -> None:
    """Else the cases below could not tell whether it did."""
    x = tf.constant(X)
    assert not same(tf.function(network)(x).numpy(), tf.function(network, jit_compile=True)(x).numpy())


@asked
def a_compiled_function_is_one_operator() -> None:
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


@asked
def within_another_function_it_is_one_operator_among_the_others() -> None:
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


@asked
def a_gradient_from_outside_is_one_more() -> None:
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


@asked
def only_dumped_steps_are_looked_at() -> None:
    run = tf.function(network, jit_compile=True)
    with recorded(steps="1") as recording:
        for _ in range(3):
            run(tf.constant(X))
    assert [op.step for op in launches(recording)] == [1]


@asked
def what_only_changes_variables_is_skipped() -> None:
    weight = tf.Variable(X)

    @tf.function(jit_compile=True)
    def update():
        weight.assign(tf.sin(weight))

    with recorded() as recording:
        update()
    assert [(op.op_name, op.skip) for op in recording.skipped(op_type="XlaLaunch")] == [("update", "not observed")]
    assert same(weight.numpy(), tf.function(tf.sin, jit_compile=True)(X).numpy())


def trained(**compiled):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(4, activation="softmax")])
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="sparse_categorical_crossentropy", **compiled)
    history = model.fit(X, np.arange(64) % 4, batch_size=16, epochs=2, shuffle=False, verbose=0)
    predicted = model.predict(X, batch_size=16, verbose=0)
    return history.history["loss"], model.get_weights(), predicted


@asked
def keras_trains_on_with_the_same_bits() -> None:
    plain = trained(jit_compile=True)
    assert not same(plain[1], trained(jit_compile=False)[1])
    with recorded() as recording:
        captured = trained(jit_compile=True)
    assert same(captured, plain)
    found = launches(recording)
    assert len(found) >= 8 + 4, [op.op_name for op in recording.writer.ops]
    given = [op for op in found if any(same(recording.array(op, "input"), X[at : at + 16]) for at in (0, 16, 32, 48))]
    assert len(given) >= 4
    functions = {"one_step_on_data", "one_step_on_data_distributed", "run_step"}  # of Keras 3, and of 2.15
    notes = recording.recorder.warnings
    told = {note.partition(" ")[0] for note in notes if "jit_compile=False" in note}
    assert told, notes
    assert told <= functions, notes


@asked
def where_xla_leaves_the_processor_alone_all_operators_are_shown() -> None:
    """`set_jit` and `global_jit_level` mean GPUs, unless a flag says otherwise."""
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


def in_session(build, level=0, streams=False):
    """What a session gives plainly and under capture, and what was recorded of it."""
    answers = []
    for captured in (False, True):
        config = v1.ConfigProto()
        config.graph_options.optimizer_options.global_jit_level = level
        with tf.Graph().as_default(), recorded_sessions(intercepts=captured, streams=streams) as found:
            x = v1.placeholder(tf.float32, X.shape, name="x")
            fetches = build(x)
            with v1.Session(config=config) as session:
                session.run(v1.global_variables_initializer())
                answers.append([session.run(fetches, {x: X}) for _ in range(3)])
    assert same(*answers), [np.abs(np.subtract(*each)).max() for each in zip(*answers, strict=True)]
    return found, answers[0]


def training(x):
    weight = v1.get_variable("w", initializer=X * 0.1, use_resource=True)
    loss = tf.reduce_mean(network(x * weight) ** 2, name="loss")
    return v1.train.GradientDescentOptimizer(0.5).minimize(loss, name="train"), loss


@asked
def a_compiled_function_in_a_session_is_one_operator() -> None:
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


@asked
def a_session_with_a_level_is_shown_where_xla_leaves_the_processor_alone() -> None:
    found, _ = in_session(training, level=1)
    assert {"Tanh", "MatMul"} <= {op.op_type for op in found.ops()}


@asked
def operators_that_are_marked_for_xla_are_left_to_it() -> None:
    def scoped(x):
        with v1.xla.experimental.jit_scope():
            return tf.identity(network(x), name="y")

    found, answers = in_session(scoped)
    assert same(found.value("y"), answers[0])
    assert found.skips()["Tanh"] == "not observed"
    assert sum("XLA" in note for note in found.capture.recorder.warnings) == 1


@flags
def functions_in_which_xla_compiles_clusters_are_one_operator() -> None:
    weight = tf.Variable(X * 0.1)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(network(x * weight) ** 2)
        weight.assign_sub(tape.gradient(loss, weight) * 0.5)
        return loss

    def train():
        weight.assign(X * 0.1)
        return [step(tf.constant(X)).numpy() for _ in range(3)], weight.numpy()

    plain = train()
    with recorded() as recording:
        captured = train()
    assert same(captured, plain)
    found = launches(recording)
    assert [op.op_name for op in found] == ["step"] * 3
    assert [recording.array(op).item() for op in found] == [each.item() for each in plain[0]]
    assert not {"Tanh", "MatMul"} & types(recording)
    (note,) = recording.recorder.warnings
    assert "step" in note
    assert "TF_XLA_FLAGS" in note


@flags
def keras_trains_on_with_the_same_bits_and_flags() -> None:
    plain = trained(jit_compile=False)
    with recorded() as recording:
        captured = trained(jit_compile=False)
    assert same(captured, plain)
    assert launches(recording)


@flags
def of_a_session_what_it_fetches_is_dumped() -> None:
    for streams in (False, True):
        found, answers = in_session(training, streams=streams)
        assert [found.value("loss", step).item() for step in range(3)] == [loss.item() for _, loss in answers]
        assert found.skips()["Tanh"] == "not observed"
        assert sum("XLA compiles clusters" in note for note in found.capture.recorder.warnings) == 1


@flags
def a_level_of_the_session_counts_where_no_flag_speaks() -> None:
    before, os.environ["TF_XLA_FLAGS"] = os.environ["TF_XLA_FLAGS"], "--tf_xla_cpu_global_jit"
    try:
        found, _ = in_session(training, level=1)  # the runtime has read its flags, and opdump these
    finally:
        os.environ["TF_XLA_FLAGS"] = before
    assert found.skips()["Tanh"] == "not observed"


if __name__ == "__main__":
    tf_functions_cases.main(sys.argv[2:], FLAGS if sys.argv[1] == "flags" else ASKED)
