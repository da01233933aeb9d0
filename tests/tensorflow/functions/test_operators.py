"""What a capture records of TensorFlow functions, Keras and eager programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from opdump.adapters.graph_runtime import GraphRun, NamedOperator
from tests.tensorflow.functions.recording import recorded


def test_each_iteration_of_a_loop_is_recorded_in_a_function() -> None:
    factor = tf.Variable(1.5)

    @tf.function
    def run(x: Any) -> Any:
        for _ in tf.range(4):
            x = tf.sin(x) * factor
        return x

    x = np.array([0.5, 1.0, 2.0], np.float32)
    with recorded() as recording:
        result = run(tf.constant(x)).numpy()
    sines, products = recording.ops(op_type="Sin"), recording.ops(op_type="Mul")
    assert [op.occurrence for op in sines] == [op.occurrence for op in products] == [0, 1, 2, 3]
    value = x
    for sine, product in zip(sines, products, strict=True):
        assert recording.array(sine, "input").tobytes() == value.tobytes()
        value = recording.array(sine) * np.float32(1.5)
        assert np.allclose(recording.array(sine), np.sin(recording.array(sine, "input")), rtol=1e-6)
        assert recording.array(product).tobytes() == value.tobytes()
    assert value.tobytes() == result.tobytes()
    assert len(recording.ops(op_type="Less")) == 5, "the condition is asked once more than the body runs"


def test_each_iteration_of_a_loop_in_a_model_of_version_1_is_recorded(tmp_path: Path) -> None:
    v1 = tf.compat.v1
    v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default(), v1.Session() as session:
            x = v1.placeholder(tf.float32, [2], "x")
            loop = v1.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * 2.0 + x), [tf.constant(0), x])
            v1.saved_model.simple_save(session, str(tmp_path / "model"), {"x": x}, {"y": loop[1]})
    finally:
        v1.enable_control_flow_v2()
    run = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    x = np.array([1.0, 2.0], np.float32)
    with recorded() as recording:
        result = run(x=tf.constant(x))["y"].numpy()
    products = recording.ops(op_type="Mul")
    assert [op.occurrence for op in products] == [0, 1, 2]
    value = x
    for product in products:
        assert recording.array(product, "input").tobytes() == value.tobytes()
        value = recording.array(product) + x
    assert value.tobytes() == result.tobytes()


def test_the_taken_branch_of_a_condition_is_recorded_and_the_other_listed() -> None:
    @tf.function
    def run(x: Any) -> Any:
        if tf.reduce_sum(x) > 0:
            y = tf.exp(x)
            y = y * 2.0
        else:
            y = tf.cos(x) - 1.0
        return y

    x = np.array([1.0, 2.0], np.float32)
    with recorded() as recording:
        run(tf.constant(x))
        run(tf.constant(-x))
    assert [(op.op_type, op.step) for op in recording.ops() if op.op_type in ("Exp", "Cos")] == [("Exp", 0), ("Cos", 1)]
    left_out = [(op.op_type, op.step) for op in recording.skipped(skip="not executed")]
    assert ("Cos", 0) in left_out
    assert ("Exp", 1) in left_out
    (cosine,) = recording.ops(op_type="Cos")
    assert np.allclose(recording.array(cosine), np.cos(-x))


def test_operators_of_inner_functions_are_recorded_for_each_call() -> None:
    @tf.function
    def inner(x: Any) -> Any:
        return tf.tanh(x)

    @tf.function
    def outer(x: Any) -> Any:
        return inner(inner(x) + 1.0)

    inner(tf.constant([3.0]))  # traced before, and called inside again
    with recorded() as recording:
        result = outer(tf.constant([0.5])).numpy()
    first, second = recording.ops(op_type="Tanh")
    assert {first.op_name, second.op_name} == {"PartitionedCall/Tanh", "PartitionedCall_1/Tanh-op1"}
    assert recording.array(second, "input").tobytes() == (recording.array(first) + np.float32(1)).tobytes()
    assert recording.array(second).tobytes() == result.tobytes()


def test_operators_come_after_those_that_they_read() -> None:
    @tf.function
    def run(x: Any) -> Any:
        for _ in range(30):
            x = tf.sin(x) + tf.cos(x)
        return x

    with recorded() as recording:
        run(tf.constant([0.5]))
    seen: set[str] = set()
    for op in sorted(recording.ops(graph_id=recording.ops(op_type="Sin")[0].graph_id), key=lambda each: each.timestamp):
        sources = {
            tensor.source.partition(":")[0] for tensor in recording.writer.tensors if tensor.op is op and tensor.source
        }
        assert {source for source in sources if not source.endswith(("/x", "/y"))} <= seen, (op.op_name, sources)
        seen.add(op.op_name)


def test_an_optimizer_has_its_inputs_with_its_variables_before_and_after_it() -> None:
    weight = tf.Variable([1.0, 2.0])

    @tf.function
    def train(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * x)
        tf.raw_ops.ResourceApplyGradientDescent(var=weight.handle, alpha=0.5, delta=tape.gradient(loss, weight))

    with recorded() as recording:
        train(tf.constant([3.0, 4.0]))
        train(tf.constant([3.0, 4.0]))
    for step, expected in enumerate(([1.0, 2.0], [-0.5, 0.0])):
        (read,) = recording.ops(op_type="ReadVariableOp", step=step)
        assert recording.array(read).tolist() == expected
        (update,) = recording.ops(op_type="ResourceApplyGradientDescent", step=step)
        tensors = [tensor for tensor in recording.writer.tensors if tensor.op is update]
        assert [(tensor.io, tensor.slot, tensor.argument) for tensor in tensors] == [
            ("input", 0, "var"),
            ("input", 1, "alpha"),
            ("input", 2, "delta"),
            ("output", 0, "var"),
        ]
        assert recording.array(update, "input", 0).tolist() == expected
        assert recording.array(update, "output", 0).tolist() == [expected[0] - 1.5, expected[1] - 2.0]
        assert recording.array(update, "input", 2).tolist() == [3.0, 4.0]
    assert weight.numpy().tolist() == [-2.0, -2.0]


def test_the_gradient_of_a_function_is_recorded_with_it() -> None:
    weight = tf.Variable(2.0)

    @tf.function
    def curve(x: Any) -> Any:
        return tf.sin(x * weight)

    with recorded() as recording:
        with tf.GradientTape() as tape:
            y = curve(tf.constant([0.5, 1.0]))
        gradient = tape.gradient(y, weight)
    (sine,) = recording.ops(op_type="Sin")
    (cosine,) = recording.ops(op_type="Cos")
    assert sine.graph_id == cosine.graph_id, "one model"
    assert recording.array(cosine, "input").tobytes() == recording.array(sine, "input").tobytes()
    expected = (recording.array(cosine) * np.array([0.5, 1.0], np.float32)).sum()
    assert np.allclose(gradient.numpy(), expected)
    assert any(op.op_name.startswith("gradients/") for op in recording.ops())


def test_each_signature_is_a_model_with_steps_of_its_own() -> None:
    @tf.function
    def run(x: Any) -> Any:
        return tf.sqrt(x)

    with recorded() as recording:
        for shape in ((2,), (3,), (2,), (2,)):
            run(tf.ones(shape))
    found = [(op.graph_id, op.step) for op in recording.ops(op_type="Sqrt")]
    first, second = sorted({number for number, _ in found})
    assert found == [(first, 0), (second, 0), (first, 1), (first, 2)]


def test_variables_made_in_the_first_call_are_made_once_and_python_runs_once() -> None:
    ran: list[int] = []
    made: list[Any] = []

    @tf.function
    def run(x: Any) -> Any:
        ran.append(1)
        if not made:
            made.append(tf.Variable([10.0, 20.0]))
        return made[0].assign_add(x)

    with recorded() as recording:
        for number in range(3):
            run(tf.constant([1.0, float(number)]))
    traced = len(ran)
    assert traced <= 2, "as often as without capture: once with the variable, once without"
    assert made[0].numpy().tolist() == [13.0, 23.0]
    assert [recording.array(op, "input", 1).tolist() for op in recording.ops(op_type="AssignAddVariableOp")] == [
        [1.0, 0.0],
        [1.0, 1.0],
        [1.0, 2.0],
    ]


def test_a_keras_step_is_a_call_of_the_train_function() -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.layers.Dense(3, name="first"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    )
    model.compile(optimizer="sgd", loss="mse")
    x = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)
    model.build((None, 5))
    kernel = model.layers[0].kernel.numpy()
    with recorded() as recording:
        model.fit(x, np.zeros((8, 3), np.float32), batch_size=2, epochs=1, verbose=0, shuffle=False)
    products = [op for op in recording.ops(op_type="MatMul") if "gradient" not in op.op_name and "first" in op.op_name]
    assert [op.step for op in products] == [0, 1, 2, 3]
    assert recording.array(products[0], "input", 1).tobytes() == kernel.tobytes(), "the value before the step"
    for number, op in enumerate(products):
        assert recording.array(op, "input").tobytes() == x[2 * number : 2 * number + 2].tobytes()
        assert np.allclose(
            recording.array(op), recording.array(op, "input") @ recording.array(op, "input", 1), atol=1e-5
        )
    assert any("gradient" in op.op_name for op in recording.ops())


def test_an_eager_step_ends_with_its_optimizer() -> None:
    weight = tf.Variable([1.0, 2.0])
    optimizer = keras.optimizers.SGD(0.5)
    with recorded() as recording:
        for _ in range(3):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(weight * weight)
            optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
    assert [(op.op_name, op.step) for op in recording.ops(op_type="Sum")] == [("Sum_0", 0), ("Sum_0", 1), ("Sum_0", 2)]
    sums = recording.ops(op_type="Sum")
    assert [float(recording.array(op)) for op in sums] == [5.0, 0.0, 0.0]
    assert weight.numpy().tolist() == [0.0, 0.0]


def test_eager_values_stay_what_they_were_when_a_variable_is_overwritten() -> None:
    variable = tf.Variable(np.arange(1000, dtype=np.float32))
    with recorded(manual=True) as recording:
        for _ in range(5):
            tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32)
            variable.assign_add(tf.ones(1000), read_value=False)
        recording.clock.manual_step()
    reads = recording.ops(op_type="ReadVariableOp")
    for number, op in enumerate(reads):
        assert recording.array(op).tolist() == (np.arange(1000) + number).tolist()


def test_values_in_a_function_stay_what_they_were_when_a_variable_is_overwritten() -> None:
    variable = tf.Variable(np.arange(1000, dtype=np.float32))

    @tf.function
    def run() -> None:
        for _ in tf.range(5):
            variable.assign_add(variable * 0 + 1)

    with recorded() as recording:
        run()
    reads = recording.ops(op_type="ReadVariableOp")
    assert len(reads) == 5
    for number, op in enumerate(reads):
        assert recording.array(op).tolist() == (np.arange(1000) + number).tolist()


def test_dtypes_that_numpy_lacks_are_recorded_exactly() -> None:
    kinds = (tf.bfloat16, tf.float16, tf.dtypes.experimental.float8_e5m2, tf.dtypes.experimental.float8_e4m3fn)

    @tf.function
    def run(x: Any) -> Any:
        return [tf.cast(x, kind) for kind in kinds], tf.complex(x, x), x > 1, tf.cast(x, tf.uint16)

    x = np.array([0.5, 1.5, -3.0], np.float32)
    with recorded() as recording:
        run(tf.constant(x))
        eager = [tf.cast(tf.constant(x), kind) for kind in kinds]
    assert len(eager) == len(kinds)
    for kind in kinds:
        found = [
            t for t in recording.writer.tensors if t.dtype == kind.name and t.io == "output" and t.op.op_type == "Cast"
        ]
        assert len(found) == 2, (kind.name, "once traced, once eager")
        for tensor in found:
            assert tensor.payload is not None
            assert tensor.payload.to_host().astype(np.float32).tolist() == x.tolist()
            assert tensor.statistics["max"] == 1.5


def test_texts_are_opaque_and_handles_are_left_out() -> None:
    table = tf.Variable([1.0])

    @tf.function
    def run(x: Any) -> Any:
        ragged = tf.RaggedTensor.from_row_lengths(x, [1, 2])
        sparse = tf.sparse.from_dense(x)
        return tf.strings.as_string(x), ragged * 2.0, tf.sparse.to_dense(sparse), table.read_value()

    with recorded() as recording:
        run(tf.constant([1.0, 0.0, 2.0]))
    (text,) = recording.ops(op_type="AsString")
    (output,) = [t for t in recording.writer.tensors if t.op is text and t.io == "output"]
    assert (output.dtype, output.skip) == ("string", "opaque")
    assert recording.ops(op_type="SparseToDense")
    assert {t.dtype for t in recording.writer.tensors}.isdisjoint({"resource", "variant"})


def test_map_functions_of_datasets_are_not_touched() -> None:
    with recorded() as recording:
        data = tf.data.Dataset.range(4).map(lambda number: tf.sin(tf.cast(number, tf.float32)))
        found = [float(each) for each in data]
    assert np.allclose(found, np.sin(np.arange(4)))
    assert not recording.ops(op_type="Sin")


def test_a_function_that_drew_random_numbers_before_the_capture_is_left_unchanged() -> None:
    def drawn(capture_from: int) -> list[float]:
        tf.random.set_seed(5)
        run = tf.function(lambda: tf.random.uniform([]))
        found = [float(run()) for _ in range(capture_from)]
        with recorded() as recording:
            found += [float(run()) for _ in range(3)]
        notes.append(recording.recorder.warnings)
        return [*found, float(run())]

    notes: list[list[str]] = []
    tf.random.set_seed(5)
    plain = tf.function(lambda: tf.random.uniform([]))
    expected = [float(plain()) for _ in range(6)]
    assert drawn(2) == expected
    assert drawn(0) == expected[:4]
    assert ["random numbers" in note for note in notes[0]] == [True]
    assert notes[1] == []


def test_statistics_without_values_are_those_of_the_values() -> None:
    weight = tf.Variable([[0.5, 2.0], [1.5, -1.0]])

    @tf.function
    def run(x: Any) -> Any:
        for _ in tf.range(3):
            x = x * 0.125 + tf.reduce_sum(x) / 7.0 + tf.cast(tf.size(tf.where(x > 1.0)), tf.float32)
        return tf.linalg.matvec(weight, x) - tf.reduce_max(x) * 1e-7

    found = []
    for saved in ("full", "statistic"):
        with recorded(saved_data=saved) as recording:
            for number in range(3):
                run(tf.constant([1.0, float(number)]))
        found.append(
            {
                (each.op.op_name, each.op.step, each.op.occurrence, each.io, each.slot): dict(each.statistics)
                for each in recording.writer.tensors
                if each.op.graph_id == recording.ops(op_type="Mul")[0].graph_id
            }
        )
    assert found[0] == found[1]
    assert len(found[0]) > 100


@pytest.mark.parametrize("is_function", [True, False])
def test_a_defect_at_one_operator_loses_that_operator_and_not_the_dump(
    monkeypatch: pytest.MonkeyPatch, *, is_function: bool
) -> None:
    real = GraphRun.emit

    def failing(run: GraphRun, operator: NamedOperator, *arguments: Any) -> None:
        assert operator.op_type != "Cos", "literal"
        real(run, operator, *arguments)

    def sines(x: Any) -> Any:
        return tf.sin(tf.cos(x) * 2.0)

    monkeypatch.setattr(GraphRun, "emit", failing)
    x = tf.constant([0.5, 1.0])
    expected = sines(x).numpy()
    function = tf.function(sines) if is_function else sines
    with recorded() as recording:
        assert [function(x).numpy().tolist() for _ in range(2)] == [expected.tolist()] * 2
    recorder = recording.recorder
    assert recorder.failure is None
    assert [len(recording.ops(op_type=kind)) for kind in ("Cos", "Mul", "Sin")] == [0, 2, 2]
    (told,) = recorder.lost.in_words()
    assert "Cos" in told
    assert "AssertionError: literal" in told


def test_an_error_of_an_operator_that_is_computed_apart_has_the_name_of_the_program() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, None])])
    def layer(x: Any) -> Any:
        return tf.nn.relu(tf.nn.bias_add(tf.matmul(x, tf.ones((3, 3)), name="product"), tf.ones(3)), name="result")

    with recorded() as recording:
        layer(tf.ones((2, 3)))
        with pytest.raises(tf.errors.InvalidArgumentError) as raised:
            layer(tf.ones((2, 4)))
    assert any("inside" in op.arguments for op in recording.ops(step=0)), "the product is a part of what ran"
    assert "opdump" not in str(raised.value)
    assert "product" in str(raised.value) or "result" in str(raised.value)


def test_a_batch_norm_that_the_runtime_fuses_with_its_activation_keeps_its_own_results() -> None:
    scale, offset = tf.Variable(tf.ones(6)), tf.Variable(tf.zeros(6))
    image = tf.constant(np.random.default_rng(0).normal(size=(4, 8, 8, 6)).astype(np.float32))
    kernel = tf.Variable(np.random.default_rng(1).normal(size=(3, 3, 6, 6)).astype(np.float32))

    @tf.function
    def run(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = tf.nn.conv2d(x, kernel, 1, "SAME")
            y, _, _ = tf.compat.v1.nn.fused_batch_norm(y, scale, offset, epsilon=1e-5)
            loss = tf.reduce_mean(tf.nn.relu(y) ** 3)
        return loss, tape.gradient(loss, [kernel, scale, offset])

    plain = [each.numpy().tobytes() for each in tf.nest.flatten(run(image))]
    with recorded() as recording:
        captured = [each.numpy().tobytes() for each in tf.nest.flatten(run(image))]
    assert captured == plain
    (norm,), (relu,) = recording.ops(op_type="FusedBatchNormV3"), recording.ops(op_type="Relu")
    normed = recording.array(norm)
    assert normed.min() < -1
    assert np.allclose(normed.reshape(-1, 6).std(axis=0), 1, rtol=1e-3)
    assert np.allclose(recording.array(relu), np.maximum(normed, 0), atol=1e-5)
