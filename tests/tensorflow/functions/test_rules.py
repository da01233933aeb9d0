"""Steps, selections, errors and layouts of TensorFlow functions and eager programs."""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import opdump
from opdump.adapters.tensorflow.functions.instrumented import without_suffix
from opdump.catalog.catalog import open_dump
from opdump.errors import ConfigError, DumpPathError
from opdump.plan import DumpPlan, KernelPattern, StepSet
from opdump.testing import CollectingWriter
from tests.tensorflow.functions.recording import recorded


def test_steps_are_counted_by_hand_where_the_program_says_so() -> None:
    run = tf.function(tf.exp)
    with recorded(manual=True, steps="1") as recording:
        for _ in range(3):
            run(tf.constant([1.0]))
            run(tf.constant([2.0]))
            recording.clock.manual_step()
    assert [(op.step, op.occurrence) for op in recording.ops(op_type="Exp")] == [(1, 0), (1, 1)]


def test_the_program_ends_after_the_last_wanted_step() -> None:
    run = tf.function(tf.exp)
    calls: list[int] = []
    with recorded(steps="1", stop=True) as recording:
        for number in range(5):
            calls.append(number)
            run(tf.constant([1.0]))
    assert calls == [0, 1]
    assert len(recording.ops(op_type="Exp")) == 1


def test_the_eager_program_takes_a_step_with_each_batch_of_keras() -> None:
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile(optimizer=keras.optimizers.Adam(0.1), loss="mse", metrics=["mae"])
    x, y = np.ones((8, 3), np.float32), np.ones((8, 2), np.float32)
    with recorded() as recording:
        model.fit(x, y, batch_size=2, epochs=1, verbose=0, validation_data=(x, y))
        tf.exp(tf.ones([2]))
    (after,) = recording.ops(op_type="Exp")
    assert after.step == 4, "four batches were trained on; those of the validation end no step"


def test_an_error_of_the_program_is_its_own() -> None:
    run = tf.function(lambda x, i: tf.gather(tf.exp(x), i))

    def message() -> tuple[type, str]:
        with pytest.raises(tf.errors.InvalidArgumentError) as raised:
            run(tf.constant([1.0]), tf.constant([5]))
        return raised.type, str(raised.value)

    plain = message()
    with recorded() as recording:
        dumped = message()
        assert np.allclose(run(tf.constant([1.0]), tf.constant([0])).numpy(), np.exp(1.0))
    assert dumped[0] is plain[0]
    assert "indices[0] = 5" in dumped[1]
    assert "_opdump" not in dumped[1], dumped[1]
    assert recording.ops(op_type="Exp")


def test_an_error_of_the_recorder_is_raised_where_the_function_was_called() -> None:
    run = tf.function(tf.exp)

    ones = tf.ones([3])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CollectingWriter, "write_payload", _full)
        with pytest.raises(DumpPathError, match="no space for Exp"), recorded(on_error="stop"):
            run(ones)


def _full(_: Any, record: Any) -> str:
    raise OSError(f"no space for {record.name}")


def _no_space(*_: Any) -> None:
    raise OSError("no space left")


def test_once_the_dump_is_lost_the_program_runs_as_without_a_capture() -> None:
    """No copy of a function runs, no operator is reported, and no callback for eager operators is registered."""
    from tensorflow.python.eager import context

    called: list[str] = []
    original = context.Context.call_function

    def listening(own: Any, name: bytes, *rest: Any) -> Any:
        called.append(name.decode())
        return original(own, name, *rest)

    def train() -> list[Any]:
        weight, optimizer = tf.Variable([0.5, 2.0]), keras.optimizers.SGD(0.1)
        run = tf.function(lambda x: tf.reduce_sum(tf.exp(x)))
        losses = []
        for _ in range(3):
            with tf.GradientTape() as tape:
                loss = run(weight) + tf.reduce_sum(weight)
            optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
            losses.append(loss.numpy())
        return [*losses, *weight.numpy()]

    expected = train()
    for saved in ("tensor", "statistic"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CollectingWriter, "write_step", _no_space)
            patch.setattr(context.Context, "call_function", listening)
            with recorded(saved_data=saved) as recording:
                train()
                recorder = recording.recorder
                assert recorder.is_over
                told: list[Any] = []
                patch.setattr(recorder, "before_op", lambda op, inputs, told=told: told.append(op) or op)
                assert not context.context().op_callbacks
                called.clear()
                found = train()
                thread = threading.Thread(target=lambda: tf.sin(tf.ones(2)))
                thread.start()
                thread.join()
                assert not context.context().op_callbacks
            assert found == expected
            assert told == []
            assert len(called) >= 6
            assert [name for name in called if without_suffix(name) != name] == []


def test_only_selected_operators_are_recorded_and_the_others_listed() -> None:
    @tf.function
    def run(x: Any) -> Any:
        for _ in tf.range(3):
            x = tf.sin(x) + tf.cos(x)
        return tf.exp(x)

    with recorded(selection="kernels", kernels=(KernelPattern.parse("Cos"),), inputs=False) as recording:
        run(tf.constant([1.0]))
    assert {op.op_type for op in recording.ops()} == {"Cos"}
    assert len(recording.ops()) == 3
    assert {tensor.io for tensor in recording.writer.tensors} == {"output"}
    assert recording.skipped(op_type="Exp", skip="not selected")
    assert (
        recording.recorder.tally.executed
        == recording.recorder.tally.captured + recording.recorder.tally.skipped.total()
    )


def test_only_operators_that_overflow_are_recorded() -> None:
    @tf.function
    def run(x: Any) -> Any:
        return tf.sqrt(tf.cast(x * 2.0, tf.float16) + 1)

    with recorded(captures="overflow", layout="acl", saved_data="tensor") as recording:
        run(tf.constant([1.0, 40000.0]))
        tf.constant([3e38]) * 3.0
    kinds = [op.op_type for op in recording.writer.ops]
    assert kinds[:1] == ["Cast"], kinds
    assert "Mul" in kinds
    assert recording.recorder.tally.skipped["no overflow"] >= 1


def test_calls_in_several_threads_are_all_recorded() -> None:
    run = tf.function(lambda x: tf.exp(x) + 1)
    run(tf.constant([1.0]))
    with recorded() as recording:
        threads = [threading.Thread(target=run, args=(tf.constant([float(n)]),)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = sorted(float(recording.array(op, "input")[0]) for op in recording.ops(op_type="Exp"))
    assert found == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_dumps_of_every_layout_can_be_read() -> None:
    run = tf.function(lambda x: tf.exp(x) * 2.0)
    for layout in ("mindspore-2.3", "mindspore-2.10", "acl"):
        with tempfile.TemporaryDirectory() as folder:
            plan = DumpPlan(
                path=Path(folder).resolve(),
                saved_data="full",
                layout=layout,
                steps=StepSet.parse("0|2"),
                file_format="bin" if layout == "acl" else "npy",
            )
            with opdump.capture(plan) as dump:
                for number in range(4):
                    run(tf.constant([1.0, float(number)]))
            assert dump.report is not None
            assert dump.report.steps == (0, 2), (layout, dump.report)
            catalog = open_dump(folder)
            assert not catalog.problems, (layout, catalog.problems)
            exps = [
                t for t in catalog.tensors() if t.op.op_type == "Exp" and t.io == "output" and t.payload is not None
            ]
            assert len(exps) == 2, (layout, [t.name for t in catalog.tensors()])
            for tensor, number in zip(sorted(exps, key=lambda t: t.op.step), (0, 2), strict=True):
                assert tensor.payload is not None
                assert np.allclose(tensor.payload.to_host(), np.exp([1.0, float(number)])), layout


def test_settings_that_only_other_frameworks_support_are_a_clear_error() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder).resolve()
        with pytest.raises(ConfigError, match="framework is 'caffe'"), opdump.capture(path=path, framework="caffe"):
            pass
        with (
            pytest.raises(ConfigError, match="'watch' is not supported on TensorFlow"),
            opdump.capture(path=path, watch=["a"]),
        ):
            pass
        with (
            pytest.raises(ConfigError, match="dump_mode 2 and set_dump"),
            opdump.capture(DumpPlan(path=path, selection="marked")),
        ):
            pass


def test_nothing_is_left_behind() -> None:
    from tensorflow.python.eager import context

    before = context.Context.call_function, keras.optimizers.Optimizer.apply_gradients, tf.executing_eagerly()
    run = tf.function(tf.exp)
    with recorded() as recording:
        run(tf.ones([2]))
    told = len(recording.writer.ops)
    run(tf.ones([2]))
    tf.exp(tf.ones([2]))
    assert len(recording.writer.ops) == told
    assert (
        context.Context.call_function,
        keras.optimizers.Optimizer.apply_gradients,
        tf.executing_eagerly(),
    ) == before
    assert not context.context().op_callbacks


def test_every_operator_is_captured_or_has_a_reason() -> None:
    @tf.function
    def run(x: Any) -> Any:
        for _ in tf.range(3):
            x = tf.map_fn(tf.sin, x)
        return tf.cond(x[0] > 0, lambda: x + 1, lambda: x * 2)

    with recorded() as recording:
        for _ in range(3):
            run(tf.ones([2]))
    recorder = recording.recorder
    assert recorder.tally.executed == recorder.tally.captured + recorder.tally.skipped.total()
    assert set(Counter(op.skip for op in recording.skipped())) <= {"constant", "control flow", "not executed", "handle"}
    assert len(recording.ops(op_type="Sin")) == 3 * 3 * 2
