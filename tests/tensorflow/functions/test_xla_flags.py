"""XLA compiles clusters wherever it can, on CPUs too. TensorFlow reads the flags on import, so this file has a separate process."""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc"

from __future__ import annotations

import os

os.environ["TF_XLA_FLAGS"] = "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit"

import tensorflow as tf

from tests.tensorflow.functions.recording import recorded
from tests.tensorflow.functions.xla_programs import X, in_session, launches, network, trained, training, types
from tests.tensorflow.sessions.recording import same


def test_functions_in_which_xla_compiles_clusters_are_one_operator() -> None:
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


def test_keras_trains_on_with_the_same_bits_and_flags() -> None:
    plain = trained(jit_compile=False)
    with recorded() as recording:
        captured = trained(jit_compile=False)
    assert same(captured, plain)
    assert launches(recording)


def test_the_fetched_tensors_of_a_compiled_session_are_dumped() -> None:
    for streams in (False, True):
        found, answers = in_session(training, streams=streams)
        assert [found.value("loss", step).item() for step in range(3)] == [loss.item() for _, loss in answers]
        assert found.skips()["Tanh"] == "not observed"
        assert sum("XLA compiles clusters" in note for note in found.capture.recorder.warnings) == 1


def test_the_level_of_a_session_applies_if_no_flag_sets_one() -> None:
    before, os.environ["TF_XLA_FLAGS"] = os.environ["TF_XLA_FLAGS"], "--tf_xla_cpu_global_jit"
    try:
        found, _ = in_session(training, level=1)  # the runtime read its flags on import, and opdump reads these now
    finally:
        os.environ["TF_XLA_FLAGS"] = before
    assert found.skips()["Tanh"] == "not observed"
