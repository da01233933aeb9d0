"""The variables and phases in records of sessions, and the faults that they show."""

# The programs are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, no-any-return"

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import opdump

X = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(8, 8)).astype(np.float32) / 3
v1 = tf.compat.v1


def train(path: Path, *, decay: float = 0.01, use_resource: bool = True) -> None:
    """Two steps of a session that trains by hand."""
    with opdump.capture(path=str(path), saved_data="full"), tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [6, 8])
        weight = v1.get_variable("w", initializer=W, use_resource=use_resource)
        loss = tf.reduce_sum(tf.square(tf.tanh(x @ weight))) / 12.0
        (gradient,) = tf.gradients(loss, [weight])
        with tf.control_dependencies([weight.assign_sub(0.1 * (gradient + decay * weight))]):
            done = tf.identity(loss)
        session.run(v1.global_variables_initializer())
        for number in range(2):
            session.run(done, {x: X + number})


def test_the_value_of_a_variable_is_in_the_slot_of_its_handle(tmp_path: Path) -> None:
    train(tmp_path)
    dump = opdump.open(tmp_path)
    updates = list(dump.ops(op_type="AssignSubVariableOp"))
    assert len(updates) == 2
    for each in updates:
        before, delta, after = each.inputs[0], each.inputs[1], each.outputs[0]
        assert before.source == "Parameter.w"
        assert np.array_equal(before.numpy() - delta.numpy(), after.numpy())
    reads = [each for each in dump.ops(op_type="ReadVariableOp", step=1) if each.inputs]
    assert reads
    assert all(np.array_equal(each.inputs[0].numpy(), updates[0].outputs[0].numpy()) for each in reads)
    phases = {each.op.op_type: each.op.phase for each in dump.ops(step=1)}
    assert (phases["Tanh"], phases["TanhGrad"], phases["AssignSubVariableOp"]) == ("forward", "backward", "optimizer")


@pytest.mark.parametrize("use_resource", [True, False])
def test_another_decay_is_named_at_its_product(tmp_path: Path, *, use_resource: bool) -> None:
    train(tmp_path / "a", use_resource=use_resource)
    train(tmp_path / "b", use_resource=use_resource, decay=0.1)
    result = opdump.compare(tmp_path / "a", tmp_path / "b")
    assert result.verdict == "divergent"
    assert result.introduced[0].op.op_type == "Mul"
