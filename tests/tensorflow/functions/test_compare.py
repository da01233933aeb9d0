"""Comparisons of TensorFlow runs: the same program in another mode is not reported as divergent, and different results are never benign."""

# The programs are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc, no-any-return"

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
import pytest
import tensorflow as tf

import opdump
from opdump.comparison.result import Result

SavedData = Literal["full", "statistic"]
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(6, 8)).astype(np.float32)
W = RANDOM.normal(size=(8, 8)).astype(np.float32) / 3


def plain(function):
    return function


def compiled(function):
    return tf.function(function, jit_compile=True)


MODES = {"eager": plain, "function": tf.function, "compiled": compiled}
PAIRS = [
    ("eager", "function"),
    ("function", "eager"),
    ("eager", "compiled"),
    ("function", "compiled"),
    ("compiled", "eager"),
]


def compared(
    tmp_path: Path, first: Callable[[], Any], second: Callable[[], Any], saved_data: SavedData = "full"
) -> Result:
    for name, program in (("a", first), ("b", second)):
        with opdump.capture(path=str(tmp_path / name), saved_data=saved_data):
            program()
    return opdump.compare(tmp_path / "a", tmp_path / "b")


def normalised(x, epsilon=1e-5):
    centred = x - tf.reduce_mean(x, -1, keepdims=True)
    return centred * tf.math.rsqrt(tf.math.reduce_variance(x, -1, keepdims=True) + epsilon)


def attention(mode, *, trains=False, epsilon=1e-5, scale=8.0**-0.5, divisor=12.0, residual=True, rate=0.1):
    """Two transformer blocks: the losses, or two steps of training."""

    def program():
        first, second = tf.Variable(W), tf.Variable(W.T)

        def loss_of(x):
            hidden = normalised(x, epsilon)
            scores = tf.matmul(hidden @ first, hidden, transpose_b=True) * scale
            mixed = tf.nn.softmax(scores + np.triu(np.full((6, 6), -1e9, np.float32), 1)) @ hidden
            mixed = mixed + x if residual else mixed
            return tf.reduce_sum(tf.square(tf.nn.gelu(mixed @ second))) / divisor

        def step(x):
            with tf.GradientTape() as tape:
                loss = loss_of(x)
            for variable, gradient in zip((first, second), tape.gradient(loss, [first, second]), strict=True):
                variable.assign_sub(rate * gradient)
            return loss

        run = MODES[mode](step if trains else loss_of)
        return [float(run(tf.constant(X + 0.1 * number))) for number in range(2)]

    return program


@pytest.mark.parametrize("saved_data", ["full", "statistic"])
def test_moments_that_xla_gets_wrong_are_named(tmp_path: Path, saved_data: SavedData) -> None:
    def moments(mode):
        return lambda: MODES[mode](lambda x: tf.nn.moments(x, axes=[0]))(tf.constant([7.5e10] * 3))

    plainly, together = moments("function")()[1].numpy(), moments("compiled")()[1].numpy()
    result = compared(tmp_path, moments("function"), moments("compiled"), saved_data)
    if plainly == together:  # a release in which both round alike
        assert result.verdict == "benign"
        return
    assert result.verdict == "divergent"
    (found,) = result.introduced
    assert found.b is not None
    assert (found.b.op_type, found.kind, found.io, found.slot) == ("XlaLaunch", "operator", "output", 1)
    assert "is compiled by XLA, and is not run again" in found.evidence


@pytest.mark.parametrize("saved_data", ["full", "statistic"])
def test_a_compiled_call_within_a_program_is_identified_by_its_result(tmp_path: Path, saved_data: SavedData) -> None:
    def program(mode, power):
        def run():
            weight = tf.Variable(W)
            hidden = tf.constant(X) @ weight
            inner = MODES[mode](lambda x: tf.reduce_sum(tf.abs(x) ** power, axis=1))(hidden)
            return float(tf.reduce_max(inner * 2.0))

        return run

    same = compared(tmp_path / "same", program("eager", 2.0), program("compiled", 2.0), saved_data)
    assert same.verdict == "benign", same.headline
    other = compared(tmp_path / "other", program("eager", 2.0), program("compiled", 2.1), saved_data)
    assert other.verdict == "divergent"
    assert other.introduced[0].b is not None
    assert other.introduced[0].b.op_type == "XlaLaunch"


def several(mode, last):
    """Two results of a function, its input, and a constant; `last` computes the second result."""

    def program():
        def returned(x):
            hidden = tf.tanh(x @ W)
            return hidden * 3.0, last(hidden), x, tf.constant(3.0)

        return MODES[mode](returned)(tf.constant(X))

    return program


@pytest.mark.parametrize("modes", [("eager", "compiled"), ("compiled", "eager"), ("function", "compiled")], ids=str)
@pytest.mark.parametrize("saved_data", ["full", "statistic"])
def test_second_result_of_a_compiled_function_is_compared(
    tmp_path: Path, modes: tuple[str, str], saved_data: SavedData
) -> None:
    def summed(hidden):
        return tf.reduce_sum(hidden, 1)

    same = compared(tmp_path / "same", several(modes[0], summed), several(modes[1], summed), saved_data)
    assert same.verdict == "benign", same.headline
    for number, last in enumerate(
        (
            lambda hidden: tf.reduce_sum(hidden, 1, keepdims=True),
            lambda hidden: tf.reshape(tf.reduce_sum(hidden, 1), (3, 2)),
            lambda hidden: tf.reduce_sum(hidden, 0),
            lambda hidden: tf.cast(tf.reduce_sum(hidden, 1), tf.float64) * 1.5,
        )
    ):
        other = compared(tmp_path / str(number), several(modes[0], summed), several(modes[1], last), saved_data)
        assert other.verdict == "divergent", (number, other.headline)


def test_another_shape_of_a_compiled_result_is_named(tmp_path: Path) -> None:
    result = compared(
        tmp_path,
        lambda: tf.constant(X) @ W,
        lambda: MODES["compiled"](lambda x: tf.reshape(x @ W, (8, 6)))(tf.constant(X)),
    )
    (found,) = result.introduced
    assert "it has shape (8, 6) instead of (6, 8)" in found.evidence


@pytest.mark.parametrize(
    ("fault", "saved_data", "trains"),
    [
        ({"epsilon": 1e-2}, "full", True),
        ({"scale": 1.0}, "full", False),
        ({"divisor": 11.0}, "statistic", True),
        ({"residual": False}, "statistic", False),
    ],
    ids=str,
)
def test_a_compiled_program_with_a_fault_is_named(
    tmp_path: Path, fault: Any, saved_data: SavedData, trains: bool
) -> None:
    result = compared(
        tmp_path, attention("function", trains=trains), attention("compiled", trains=trains, **fault), saved_data
    )
    assert result.verdict == "divergent", result.headline
    assert result.introduced[0].b is not None
    assert result.introduced[0].b.op_type == "XlaLaunch"


@pytest.mark.parametrize(
    ("modes", "trains", "saved_data"),
    [
        (modes, trains, saved_data)
        for modes in PAIRS[:2]
        for trains in (False, True)
        for saved_data in ("full", "statistic")
    ]
    + [(PAIRS[2], True, "full"), (PAIRS[3], False, "statistic"), (PAIRS[4], True, "statistic")],
)
def test_a_program_in_another_mode_is_not_accused(
    tmp_path: Path, modes: tuple[str, str], trains: bool, saved_data: SavedData
) -> None:
    first, second = (attention(mode, trains=trains) for mode in modes)
    result = compared(tmp_path, first, second, saved_data)
    assert result.verdict == "benign", result.headline


@pytest.mark.parametrize("saved_data", ["full", "statistic"])
@pytest.mark.parametrize("modes", PAIRS[:2])
def test_values_that_are_only_handed_on_are_paired_by_value(
    tmp_path: Path, modes: tuple[str, str], saved_data: SavedData
) -> None:
    def program(mode, factor=2.0):
        def returned(x):
            return x, x * factor, tf.identity(x), tf.identity(x * 3.0)

        return lambda: MODES[mode](returned)(tf.constant(X))

    first, second = (program(mode) for mode in modes)
    same = compared(tmp_path / "same", first, second, saved_data)
    assert same.verdict in ("benign", "identical"), same.headline
    assert compared(tmp_path / "other", first, program(modes[1], 2.5), saved_data).verdict == "divergent"


def test_calls_of_a_function_are_compared_with_the_one_step_of_the_eager_program(tmp_path: Path) -> None:
    result = compared(tmp_path, attention("eager"), attention("function"))
    assert "the runs have different step boundaries, so all steps of each were compared as one" in result.notes
    assert result.matched > 50, "both calls"


def test_a_compiled_function_has_the_name_of_the_program_among_its_arguments(tmp_path: Path) -> None:
    with opdump.capture(path=str(tmp_path), saved_data="full"):
        attention("compiled")()
    launches = list(opdump.open(tmp_path).ops(op_type="XlaLaunch"))
    assert [each.op.arguments for each in launches] == [{"function": "loss_of"}] * 2


def test_an_operator_has_the_same_arguments_at_once_and_in_a_function(tmp_path: Path) -> None:
    layers = keras.Sequential([keras.layers.Conv2D(4, 3, padding="same"), keras.layers.MaxPooling2D(2)])
    images = RANDOM.normal(size=(2, 8, 8, 3)).astype(np.float32)
    layers(images)

    def run(images, tokens):
        pooled = layers(images)
        return (
            tf.squeeze(pooled[:1], 0),
            tf.one_hot(tokens, 5),
            tf.reduce_mean(pooled, [1, 2]),
            tf.concat([pooled] * 2, 3),
        )

    found: list[dict[str, dict[str, Any]]] = []
    for mode in ("eager", "function"):
        with opdump.capture(path=str(tmp_path / mode), saved_data="full"):
            MODES[mode](run)(tf.constant(images), tf.constant([1, 2]))
        executions = opdump.open(tmp_path / mode).ops()
        found.append({each.op.op_type: {**each.op.arguments} for each in executions})
    for op_type in ("Conv2D", "MaxPool", "Squeeze", "OneHot", "Mean", "ConcatV2", "StridedSlice"):
        eager, function = (
            {
                name: value
                for name, value in arguments[op_type].items()
                if name not in ("source", "inside", "executed_as")
            }
            for arguments in found
        )
        assert eager == function, op_type
    assert found[0]["Conv2D"]["strides"] == [1, 1, 1, 1]
    assert found[0]["OneHot"]["axis"] == -1


def test_operators_are_filed_behind_those_that_make_what_they_read(tmp_path: Path) -> None:
    with opdump.capture(path=str(tmp_path), saved_data="full"):
        tf.function(lambda x: tf.nn.moments(x, axes=[0]))(tf.constant(X))
    seen: set[str] = set()
    names = {each.op.op_name for each in opdump.open(tmp_path).ops()}
    for execution in opdump.open(tmp_path).ops():
        makers = {record.source.rpartition(":")[0] for record in execution.inputs.values()} & names
        assert makers <= seen, execution.op.op_name
        seen.add(execution.op.op_name)
    assert "moments/StopGradient" in seen


def test_a_product_that_was_rewritten_is_marked_and_all_others_give_what_their_inputs_give(tmp_path: Path) -> None:
    with opdump.capture(path=str(tmp_path), saved_data="full"):
        attention("function", trains=True)()
    products = list(opdump.open(tmp_path).ops(op_type="Mul"))
    rewritten = [each for each in products if "executed_as" in each.op.arguments]
    kept = [each for each in products if "executed_as" not in each.op.arguments]
    assert rewritten
    assert len(kept) > 10
    for each in kept:
        one, other = (each.inputs[slot].numpy() for slot in (0, 1))
        assert (one * other).tobytes() == each.outputs[0].numpy().tobytes(), each.op.op_name


def test_a_session_whose_optimizer_is_an_operator_is_compared_with_a_function_that_assigns(tmp_path: Path) -> None:
    v1 = tf.compat.v1

    def session():
        with tf.Graph().as_default(), v1.Session() as running:
            x = v1.placeholder(tf.float32, [None, 8])
            weight = v1.get_variable("w", initializer=W, use_resource=True)
            loss = tf.reduce_mean(tf.square(tf.tanh(x @ weight)))
            train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
            running.run(v1.global_variables_initializer())
            return [running.run([loss, train], {x: X})[0] for _ in range(2)]

    def function(rate):
        weight = tf.Variable(W)

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(tf.tanh(x @ weight)))
            weight.assign_sub(rate * tape.gradient(loss, weight))
            return loss

        return [step(tf.constant(X)) for _ in range(2)]

    same = compared(tmp_path / "same", session, lambda: function(0.1))
    assert same.verdict == "benign", same.headline
    assert compared(tmp_path / "other", session, lambda: function(0.2)).verdict == "divergent"


def fitted(layers, *, eager, loss="mse", optimizer="Adam", rate=0.01, scale=1.0, **options):
    """One epoch with two batches of a Keras model."""

    def program():
        keras.utils.set_random_seed(0)
        random = np.random.default_rng(0)
        model = keras.Sequential(layers())
        shape = model.input_shape[1:]
        floats = random.normal(size=(8, *shape)).astype(np.float32)
        data = floats if model.inputs[0].dtype == "float32" else random.integers(0, 9, (8, *shape))
        updates = getattr(keras.optimizers, optimizer)(rate, **options)
        model.compile(updates, loss, loss_weights=[scale], metrics=["accuracy"], run_eagerly=eager, jit_compile=False)
        model.fit(data, random.integers(0, 3, 8), batch_size=4, shuffle=False, verbose=0)

    return program


def dense():
    return [keras.Input((8,)), keras.layers.Dense(6, "relu"), keras.layers.Dense(3, "softmax")]


def embedded():
    layers = keras.layers
    return [keras.Input((4,), dtype="int32"), layers.Embedding(9, 4), layers.GlobalAveragePooling1D(), layers.Dense(1)]


LOSS = "sparse_categorical_crossentropy"


def test_keras_that_runs_eagerly_is_not_accused_and_a_fault_in_it_is(tmp_path: Path) -> None:
    plain, eager = (fitted(dense, loss=LOSS, eager=eager) for eager in (False, True))
    same = compared(tmp_path / "same", plain, eager, "statistic")
    assert same.verdict == "benign", same.headline
    for name, fault in {"rate": {"rate": 0.02}, "epsilon": {"epsilon": 1e-2}}.items():
        other = fitted(dense, loss=LOSS, eager=True, **fault)
        assert compared(tmp_path / name, plain, other, "statistic").verdict == "divergent", name


@pytest.mark.parametrize("first_is_eager", [False, True])
def test_an_embedding_that_is_trained_eagerly_is_not_accused(tmp_path: Path, first_is_eager: bool) -> None:
    pair = [fitted(embedded, eager=eager) for eager in (first_is_eager, not first_is_eager)]
    result = compared(tmp_path, pair[0], pair[1], "statistic")
    assert result.verdict == "benign", result.headline


def test_gradients_and_shapes_that_the_program_leaves_are_no_results_of_one_mode(tmp_path: Path) -> None:
    def program(mode, epsilon=1e-5):
        def gradients(x, weight):
            with tf.GradientTape() as tape:
                tape.watch([x, weight])
                chances = tf.nn.softmax(x @ weight * tf.cast(tf.size(x), tf.float32) / 48.0)
                loss = tf.reduce_mean(tf.math.log(chances + epsilon)[:, : tf.shape(x)[0] - 4])
            return loss, tape.gradient(loss, [x, weight])

        return lambda: MODES[mode](gradients)(tf.constant(X), tf.constant(W))

    same = compared(tmp_path / "same", program("eager"), program("function"), "statistic")
    assert same.verdict == "benign", same.headline
    other = compared(tmp_path / "other", program("eager"), program("function", 1e-2), "statistic")
    assert other.verdict == "divergent"


class Attends(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.attention = keras.layers.MultiHeadAttention(2, 4)

    def call(self, x):
        return tf.reduce_mean(self.attention(x, x), 1)


def normalised_by_batch():
    layers = keras.layers
    return [keras.Input((8,)), layers.Dense(6), layers.BatchNormalization(), layers.ReLU(), layers.Dense(3)]


def normalised_by_image():
    layers = keras.layers
    normal = layers.GroupNormalization(-1)
    return [keras.Input((6, 6, 2)), layers.Conv2D(4, 3), normal, layers.GlobalMaxPooling2D(), layers.Dense(3)]


def attended():
    """The bias of the keys adds the same to all scores of a row, which does not change the softmax."""
    return [keras.Input((5, 8)), Attends(), keras.layers.Dense(3)]


LOSS_OF_LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.mark.parametrize(
    ("layers", "optimizer", "first_is_eager"),
    [
        pytest.param(
            *(normalised_by_batch, "Lion", False),
            marks=pytest.mark.skipif(
                tf.__version__ < "2.16",
                reason="Keras 2 writes optimizer states at other places, so the weights are reported",
            ),
        ),
        (normalised_by_image, "RMSprop", True),
        (attended, "Adam", False),
    ],
)
def test_an_optimizer_may_make_full_steps_of_gradients_that_are_only_rounding(
    tmp_path: Path, layers: Any, optimizer: str, first_is_eager: bool
) -> None:
    first, second = (
        fitted(layers, eager=eager, loss=LOSS_OF_LOGITS, optimizer=optimizer)
        for eager in (first_is_eager, not first_is_eager)
    )
    result = compared(tmp_path, first, second, "statistic")
    assert result.verdict == "benign", result.headline


@pytest.mark.parametrize(
    ("layers", "fault"),
    [
        (normalised_by_batch, {"epsilon": 1e-2}),
        (normalised_by_image, {"rate": 0.011}),
        (attended, {"scale": 0.5}),
    ],
    ids=["epsilon", "rate", "scale"],
)
def test_a_fault_beside_gradients_that_are_only_rounding_is_no_rounding(
    tmp_path: Path, layers: Any, fault: Any
) -> None:
    plain = fitted(layers, eager=True, loss=LOSS_OF_LOGITS)
    other = fitted(layers, eager=False, loss=LOSS_OF_LOGITS, **fault)
    assert compared(tmp_path, plain, other, "statistic").verdict == "divergent"


def shifted_by_a_bias(mode, *, rate=0.01, epsilon=1e-7, scale=1.0):
    """Two steps of Adam for a product and for a bias that subtracting the batch mean removes."""

    def program():
        weight, bias = tf.Variable(W), tf.Variable(tf.zeros(8))
        states = [[tf.Variable(tf.zeros_like(each)) for _ in range(2)] for each in (weight, bias)]

        def step(x):
            with tf.GradientTape() as tape:
                hidden = x @ weight + bias
                centred = hidden - tf.reduce_mean(hidden, 0)
                loss = tf.reduce_mean(tf.square(tf.nn.relu(centred) - 1.0)) * scale
            gradients = tape.gradient(loss, [weight, bias])
            for variable, gradient, (mean, square) in zip((weight, bias), gradients, states, strict=True):
                mean.assign_add(0.1 * (gradient - mean))
                square.assign_add(0.001 * (tf.square(gradient) - square))
                variable.assign_sub(rate * mean / (tf.sqrt(square) + epsilon))
            return loss

        run = MODES[mode](step)
        return [float(run(tf.constant(X + 0.1 * number))) for number in range(2)]

    return program


def test_values_of_gradients_that_are_only_rounding_are_not_accused_and_faults_beside_them_are(tmp_path: Path) -> None:
    same = compared(tmp_path / "same", shifted_by_a_bias("eager"), shifted_by_a_bias("function"))
    assert same.verdict == "benign", same.headline
    for fault in ({"rate": 0.011}, {"epsilon": 1e-4}, {"scale": 0.5}):
        other = compared(
            tmp_path / next(iter(fault)), shifted_by_a_bias("eager"), shifted_by_a_bias("function", **fault)
        )
        assert other.verdict == "divergent", fault


@pytest.mark.parametrize("modes", [("eager", "function"), ("function", "function")])
def test_results_of_other_shapes_are_divergent_in_every_mode(tmp_path: Path, modes: tuple[str, str]) -> None:
    lasts = [lambda y: y, lambda y: tf.reshape(y, (8, 6)), lambda y: tf.expand_dims(y, 0)]

    def program(mode, last):
        return lambda: MODES[mode](lambda x: last(tf.tanh(x) * 2.0))(tf.constant(X))

    for place, last in enumerate(lasts):
        same = compared(tmp_path / f"same{place}", program(modes[0], last), program(modes[1], last))
        assert same.verdict in ("identical", "benign"), same.headline
        after = lasts[(place + 1) % len(lasts)]
        other = compared(tmp_path / f"other{place}", program(modes[0], last), program(modes[1], after))
        assert other.verdict == "divergent"


def recurrent(mode, *, decay=0.99, resets=True):
    """Two steps of Adam for a recurrent cell."""

    def program():
        random = np.random.default_rng(0)
        gates, candidates = (tf.Variable(random.normal(0, 0.4, (8, 8)).astype(np.float32)) for _ in range(2))
        weights = [gates, candidates]
        means, squares = ([tf.Variable(tf.zeros_like(each)) for each in weights] for _ in range(2))

        def step(x):
            with tf.GradientTape() as tape:
                hidden = tf.zeros((6, 8))
                for shift in range(3):
                    gate = tf.sigmoid(tf.matmul(hidden, gates) + tf.roll(x, shift, 1))
                    past = gate * hidden if resets else hidden
                    hidden = gate * hidden + (1.0 - gate) * tf.tanh(tf.matmul(past, candidates) + x)
                loss = tf.reduce_mean(tf.square(hidden - 0.5))
            gradients = tape.gradient(loss, weights)
            for each, gradient, mean, square in zip(weights, gradients, means, squares, strict=True):
                mean.assign(0.9 * mean + 0.1 * gradient)
                square.assign(decay * square + 0.01 * tf.square(gradient))
                each.assign_sub(0.02 * mean / (tf.sqrt(square) + 1e-6))
            return loss

        run = MODES[mode](step)
        return [float(run(tf.constant(X + 0.1 * number))) for number in range(2)]

    return program


@pytest.mark.parametrize("fault", ["decay", "resets"])
def test_steps_that_train_are_compared_one_by_one_whatever_runs_eagerly(tmp_path: Path, fault: str) -> None:
    same = compared(tmp_path / "same", recurrent("function"), recurrent("eager"))
    assert same.verdict == "benign", same.headline
    assert not any("compared as one" in note for note in same.notes)
    # The second moment, which is zero in the first step, differs only in the second step, in which eager operators have other numbers.
    faulty, code = {"decay": (0.9, "square.assign(decay"), "resets": (False, "past")}[fault]
    found = compared(tmp_path / "other", recurrent("function"), recurrent("eager", **{fault: faulty})).introduced[0]
    named = found.a if found.b is None else found.b
    assert named is not None
    assert code in named.stack[0].code, found.headline
