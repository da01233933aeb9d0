"""Programs as people write them, of both generations: each runs plainly and under capture, and what it answers has to be the same bits.

Prints a line of JSON for each program and mode.
usage: tf_real_programs.py function|session [program...]
"""

# The programs are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc, name-defined"

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from opdump.adapters.tensorflow.estimator.v1_names import give_v1_names
from opdump.plan import StepSet
from tests.tensorflow.functions.recording import recorded as recorded_functions
from tests.tensorflow.sessions.recording import recorded as recorded_sessions
from tests.tensorflow.sessions.recording import same

v1 = tf.compat.v1
PROGRAMS: dict[str, dict[str, Any]] = {"function": {}, "session": {}}
MODES: dict[str, dict[str, Any]] = {
    "statistics": {"saved_data": "statistic"},
    "full": {"saved_data": "full", "steps": "1|2"},
    "overflow": {"captures": "overflow"},
}
RNG = np.random.default_rng(7)
IMAGES = RNG.normal(size=(16, 8, 8, 3)).astype(np.float32)
LABELS = RNG.integers(0, 4, 16)


def program(kind):
    def add(function):
        PROGRAMS[kind][function.__name__] = function
        return function

    return add


def classifier():
    return keras.Sequential(
        [
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(4, activation="softmax"),
        ],
        name="classifier",
    )


@program("function")
def keras_with_callbacks_and_metrics():
    folder = tempfile.mkdtemp()
    model = classifier()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(
        IMAGES,
        LABELS,
        batch_size=4,
        epochs=3,
        verbose=0,
        validation_split=0.25,
        callbacks=[
            keras.callbacks.EarlyStopping(monitor="val_loss", patience=1, restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1),
            keras.callbacks.ModelCheckpoint(f"{folder}/best.weights.h5", save_weights_only=True, monitor="loss"),
            keras.callbacks.CSVLogger(f"{folder}/log.csv"),
            keras.callbacks.TerminateOnNaN(),
        ],
    )
    return [
        *(np.float32(value) for values in history.history.values() for value in values),
        *model.evaluate(IMAGES, LABELS, verbose=0),
        model.predict(IMAGES, verbose=0),
        *model.get_weights(),
        Path(f"{folder}/log.csv").read_text(),
    ]


@program("function")
def keras_in_mixed_precision():
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        inputs = keras.Input((6,))
        x = keras.layers.Dense(8, activation="gelu")(inputs)
        x = keras.layers.LayerNormalization()(x)
        model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(x))
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        x = RNG_VALUES[:, :6]
        history = model.fit(x, x.sum(1, keepdims=True), batch_size=4, epochs=2, verbose=0)
        return [*(np.float32(each) for each in history.history["loss"]), *model.get_weights()]
    finally:
        keras.mixed_precision.set_global_policy("float32")


RNG_VALUES = RNG.normal(size=(16, 8)).astype(np.float32)


@program("function")
def custom_loop_over_a_pipeline():
    data = (
        tf.data.Dataset.from_tensor_slices((IMAGES, LABELS))
        .map(lambda image, label: (tf.image.flip_left_right(image) / 2.0, label), num_parallel_calls=2)
        .shuffle(16, seed=3)
        .batch(4)
        .repeat(2)
        .prefetch(2)
    )
    model, optimizer = classifier(), keras.optimizers.Adam(0.01)
    loss_of = keras.losses.SparseCategoricalCrossentropy()
    mean, accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()

    @tf.function
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            predicted = model(images, training=True)
            loss = loss_of(labels, predicted)
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        mean.update_state(loss)
        accuracy.update_state(labels, predicted)
        return loss

    losses = [train_step(images, labels).numpy() for images, labels in data]
    return [*losses, mean.result().numpy(), accuracy.result().numpy(), *model.get_weights()]


@program("function")
def several_replicas():
    devices = tf.config.list_logical_devices("CPU")
    assert len(devices) == 2, devices
    strategy = tf.distribute.MirroredStrategy([each.name for each in devices])
    with strategy.scope():
        weight = tf.Variable(np.ones((8, 2), np.float32) * 0.1)
    data = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(RNG_VALUES).batch(8))

    @tf.function
    def step(batch):
        def replica(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(tf.nn.relu(x @ weight) - 1.0))
            gradient = tape.gradient(loss, weight)
            total = tf.distribute.get_replica_context().all_reduce("SUM", gradient)
            weight.assign_sub(0.1 * total)
            return loss

        return strategy.reduce("MEAN", strategy.run(replica, args=(batch,)), axis=None)

    return [*(step(batch).numpy() for batch in data for _ in range(2)), weight.numpy()]


@program("function")
def ragged_sentences_and_lookups():
    words = tf.ragged.constant([["a", "b", "c"], ["b"], ["c", "a"]])
    table = tf.lookup.StaticVocabularyTable(
        tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([0, 1], tf.int64)), 2
    )
    embedding = tf.Variable(RNG_VALUES[:4, :3])

    @tf.function
    def encode(words):
        ids = tf.ragged.map_flat_values(table.lookup, words)
        vectors = tf.ragged.map_flat_values(lambda each: tf.nn.embedding_lookup(embedding, each), ids)
        return tf.reduce_mean(vectors, axis=1), ids.row_lengths()

    answers = []
    for _ in range(3):
        with tf.GradientTape() as tape:
            means, lengths = encode(words)
            loss = tf.reduce_sum(means**2)
        gradient = tape.gradient(loss, embedding)
        embedding.scatter_nd_sub(gradient.indices[:, None], 0.1 * gradient.values)
        answers += [loss.numpy(), lengths.numpy()]
    return [*answers, embedding.numpy()]


@program("function")
def recurrent_loops_and_branches():
    kernel = tf.Variable(RNG_VALUES[:8, :8] * 0.3)

    @tf.function
    def unrolled(x):
        states = tf.TensorArray(tf.float32, 0, dynamic_size=True)
        state, count = tf.zeros([8]), tf.constant(0)
        while count < 6 and tf.reduce_sum(tf.abs(state)) < 50.0:
            state = tf.tanh(x + tf.linalg.matvec(kernel, state))
            if state[0] > 0:
                state *= 1.1
            else:
                state -= 0.1
            states = states.write(count, state)
            count += 1
        return tf.reduce_sum(states.stack() ** 2), count

    answers = []
    for number in range(3):
        with tf.GradientTape() as tape:
            loss, count = unrolled(tf.constant(RNG_VALUES[number]))
        kernel.assign_sub(0.05 * tape.gradient(loss, kernel))
        answers += [loss.numpy(), count.numpy()]
    return [*answers, kernel.numpy()]


@program("function")
def a_saved_model_and_its_signatures():
    class Scorer(tf.Module):
        def __init__(self):
            self.weight = tf.Variable(RNG_VALUES[:8, :2])
            self.calls = tf.Variable(0)

        @tf.function(input_signature=[tf.TensorSpec([None, 8], tf.float32)])
        def score(self, x):
            self.calls.assign_add(1)
            return {"scores": tf.nn.softmax(x @ self.weight), "calls": self.calls + 0}

    folder, scorer = tempfile.mkdtemp(), Scorer()
    tf.saved_model.save(scorer, folder, signatures={"serving_default": scorer.score})
    loaded = tf.saved_model.load(folder)
    serve = loaded.signatures["serving_default"]
    found = [serve(tf.constant(RNG_VALUES[:number])) for number in (1, 3, 1)]
    found.append(loaded.score(tf.constant(RNG_VALUES)))
    return [each[key].numpy() for each in found for key in ("scores", "calls")]


@program("function")
def eager_training_with_checks():
    tf.debugging.enable_check_numerics()
    try:
        weight = tf.Variable(RNG_VALUES[:8, :1])
        optimizer = keras.optimizers.RMSprop(0.01)
        losses = []
        for _ in range(3):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.math.log1p(tf.square(tf.constant(RNG_VALUES) @ weight)))
            optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
            losses.append(loss.numpy())
        return [*losses, weight.numpy(), tf.random.uniform([3]).numpy()]
    finally:
        tf.debugging.disable_check_numerics()


@program("function")
def keras_run_eagerly_with_own_train_step():
    class Own(keras.Model):
        def __init__(self):
            super().__init__(name="own")
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    model = Own()
    answers = []
    for eagerly in (False, True):
        model.compile("sgd", run_eagerly=eagerly)
        history = model.fit(RNG_VALUES, RNG_VALUES[:, :1], batch_size=8, epochs=2, verbose=0)
        answers += [np.float32(each) for each in history.history["loss"]]
    return [*answers, *model.get_weights()]


@program("function")
def keras_with_summaries():
    folder = Path(tempfile.mkdtemp())

    class Summaries(keras.callbacks.Callback):
        """What the TensorBoard callback writes; that needs a package of its own from TensorFlow 2.21 on."""

        def on_train_begin(self, logs=None):
            self.writer = tf.summary.create_file_writer(str(folder))
            self.batches = 0

        def on_train_batch_end(self, batch, logs=None):
            self.batches += 1
            with self.writer.as_default(step=self.batches):
                tf.summary.write("loss", np.float32(logs["loss"]))
                for number, weight in enumerate(self.model.get_weights()):
                    tf.summary.write(f"weight {number}", weight)

        def on_train_end(self, logs=None):
            self.writer.close()

    has_tensorboard = importlib.util.find_spec("tensorboard") is not None
    board = keras.callbacks.TensorBoard(str(folder), histogram_freq=1, update_freq="batch") if has_tensorboard else None
    model = classifier()
    model.compile("adam", "sparse_categorical_crossentropy")
    history = model.fit(
        IMAGES,
        LABELS,
        batch_size=4,
        epochs=2,
        verbose=0,
        shuffle=False,
        callbacks=[Summaries(), *([board] if board else [])],
    )
    events = [path for path in folder.rglob("*tfevents*") if "profile" not in path.name]
    counts = sorted(sum(1 for _ in tf.compat.v1.io.tf_record_iterator(str(path))) for path in events)
    return [*(np.float32(each) for each in history.history["loss"]), *model.get_weights(), str(counts)]


@program("function")
def a_pipeline_of_python():
    calls = []

    def examples():
        for number in range(6):
            calls.append("example")
            yield RNG_VALUES[number], RNG_VALUES[number, :1]

    def louder(x):
        calls.append("numpy")
        return x * np.float32(1.1)

    def rooted(x):
        calls.append("python")
        return tf.sqrt(tf.abs(x))

    data = tf.data.Dataset.from_generator(
        examples, output_signature=(tf.TensorSpec([8], tf.float32), tf.TensorSpec([1], tf.float32))
    )
    data = data.map(
        lambda x, y: (tf.ensure_shape(tf.py_function(rooted, [x], tf.float32), [8]), y), num_parallel_calls=2
    )
    data = data.map(lambda x, y: (tf.ensure_shape(tf.numpy_function(louder, [x], tf.float32, stateful=False), [8]), y))
    data = data.batch(2).interleave(
        lambda x, y: tf.data.Dataset.from_tensors((x * 2.0, y)),
        cycle_length=2,
        num_parallel_calls=2,
        deterministic=True,
    )
    model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    history = model.fit(data.prefetch(2), epochs=2, verbose=0)
    evaluated = model.evaluate(data, verbose=0)
    predicted = model.predict(data.map(lambda x, y: x), verbose=0)
    return [
        *(np.float32(each) for each in history.history["loss"]),
        *(np.float32(evaluated), predicted, *model.get_weights()),
        str({each: calls.count(each) for each in ("example", "numpy", "python")}),
    ]


@program("function")
def trainings_in_threads():
    found = {}

    def train(number):
        weight = tf.Variable(RNG_VALUES[:8, :1] * (number + 1))
        optimizer = keras.optimizers.SGD(0.01)
        forward = tf.function(lambda x: tf.reduce_mean((x @ weight) ** 2))
        losses = []
        for _ in range(3):
            with tf.GradientTape() as tape:
                loss = forward(tf.constant(RNG_VALUES))
            optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
            losses.append(loss.numpy())
        found[number] = [*losses, weight.numpy()]

    threads = [threading.Thread(target=train, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [each for number in sorted(found) for each in found[number]]


@program("function")
def an_exported_model_of_keras():
    model = keras.Sequential(
        [
            keras.layers.Input((8,)),
            keras.layers.Dense(4, activation="relu"),
            keras.layers.Dense(2, activation="softmax"),
        ]
    )
    folder = tempfile.mkdtemp()
    model.export(f"{folder}/served")
    served = tf.saved_model.load(f"{folder}/served")
    found = []
    for name in sorted(served.signatures):
        signature = served.signatures[name]
        given = {key: tf.constant(RNG_VALUES[:3]) for key in signature.structured_input_signature[1]}
        found += [each.numpy() for _ in range(2) for each in signature(**given).values()]
    model.save(f"{folder}/model.keras")
    return [
        *found,
        keras.models.load_model(f"{folder}/model.keras").predict(RNG_VALUES, verbose=0),
        *model.get_weights(),
    ]


@program("function")
def keras_on_replicas():
    strategy = tf.distribute.MirroredStrategy([each.name for each in tf.config.list_logical_devices("CPU")])
    with strategy.scope():
        model = keras.Sequential(
            [keras.layers.Dense(8, activation="relu"), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    data = tf.data.Dataset.from_tensor_slices((RNG_VALUES, RNG_VALUES[:, :1])).map(lambda x, y: (x * 0.5, y)).batch(8)
    history = model.fit(data, epochs=2, verbose=0)
    return [
        *(np.float32(each) for values in history.history.values() for each in values),
        *(model.predict(RNG_VALUES, batch_size=8, verbose=0), *model.get_weights()),
    ]


@program("session")
def an_estimator_with_callbacks():
    give_v1_names()
    calls: list[int] = []
    estimators = getattr(v1, "estimator", None) or tf.estimator

    def louder(x):
        calls.append(1)
        return x * np.float32(1.1)

    def examples(mode):
        data = tf.data.Dataset.from_tensor_slices((RNG_VALUES, RNG_VALUES[:, :1]))
        return data.map(lambda x, y: (tf.ensure_shape(tf.numpy_function(louder, [x], tf.float32), [8]), y)).batch(4)

    def network(features, labels, mode):
        hidden = tf.ensure_shape(tf.numpy_function(np.tanh, [features], tf.float32, stateful=False), [None, 8])
        predicted = tf.matmul(hidden, v1.get_variable("w", initializer=RNG_VALUES[:8, :1]))
        if mode == estimators.ModeKeys.PREDICT:
            return estimators.EstimatorSpec(mode, predictions={"predicted": predicted})
        loss = tf.reduce_mean((predicted - labels) ** 2)
        if mode == estimators.ModeKeys.EVAL:
            return estimators.EstimatorSpec(mode, loss=loss)
        train = v1.train.AdamOptimizer(0.01).minimize(loss, v1.train.get_global_step())
        return estimators.EstimatorSpec(mode, loss=loss, train_op=train)

    estimator = estimators.Estimator(network, tempfile.mkdtemp())
    estimator.train(lambda: examples("train"))
    evaluated = estimator.evaluate(lambda: examples("eval"))
    predicted = [each["predicted"] for each in estimator.predict(lambda: examples("infer"))]
    return [np.float32(evaluated["loss"]), np.stack(predicted), estimator.get_variable_value("w"), str(len(calls))]


@program("session")
def linear_regression():
    x, y = v1.placeholder(tf.float32, [None, 8]), v1.placeholder(tf.float32, [None, 1])
    weight = v1.get_variable("weight", [8, 1], initializer=v1.glorot_uniform_initializer(seed=2))
    bias = v1.get_variable("bias", [1], initializer=v1.zeros_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(x, weight) + bias - y))
    train = v1.train.MomentumOptimizer(0.05, 0.9).minimize(loss, v1.train.get_or_create_global_step())
    summary = v1.summary.scalar("loss", loss)
    saver = v1.train.Saver()
    folder = tempfile.mkdtemp()
    answers = []
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for number in range(4):
            feed = {x: RNG_VALUES[number : number + 8], y: RNG_VALUES[number : number + 8, :1]}
            answers.append(session.run([train, loss], feed)[1])
            session.run(summary, feed)
        saver.save(session, f"{folder}/model")
        answers.append(session.run(weight))
        session.run(weight.assign(tf.zeros_like(weight)))
        saver.restore(session, f"{folder}/model")
        return [*answers, session.run(weight)]


@program("session")
def operators_that_are_added_between_runs():
    """Seeds of operators follow from the number of operators that a graph has."""
    v1.set_random_seed(11)
    x = v1.placeholder(tf.float32, [4])
    y = tf.nn.relu(x * 2.0) + tf.random.uniform([4])
    answers = []
    with v1.Session() as session:
        for number in range(3):
            answers.append(session.run(y, {x: RNG_VALUES[number, :4]}))
            y = tf.tanh(y) + tf.random.normal([4])
            answers.append(session.run(y, {x: RNG_VALUES[number, :4]}))
        names = [
            operation.name for operation in session.graph.get_operations() if not operation.name.startswith("opdump")
        ]
    return [*answers, "\n".join(names)]


@program("session")
def a_monitored_session_with_hooks():
    iterator = v1.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(RNG_VALUES).batch(4).repeat())
    batch = iterator.get_next()
    hidden = tf.nn.relu(tf.matmul(batch, v1.get_variable("w", initializer=RNG_VALUES[:8])))
    loss = tf.reduce_mean(hidden**2)
    step = v1.train.get_or_create_global_step()
    train = v1.train.AdamOptimizer(0.01).minimize(loss, step)
    seen = []

    class Hook(v1.train.SessionRunHook):
        def before_run(self, run_context):
            return v1.train.SessionRunArgs(loss)

        def after_run(self, run_context, run_values):
            # In the run itself nothing orders a read of the step with its update: TensorFlow's own hooks read it here too.
            seen.append([run_values.results, run_context.session.run(step)])

    hooks = [Hook(), v1.train.StopAtStepHook(num_steps=5), v1.train.NanTensorHook(loss)]
    with v1.train.MonitoredTrainingSession(hooks=hooks, checkpoint_dir=tempfile.mkdtemp()) as session:
        while not session.should_stop():
            session.run(train)
    return seen


def run(function, mode, kind):
    keras.utils.set_random_seed(5)
    if mode is None:
        return function(), 0
    if kind == "function":
        with recorded_functions(**mode) as found:
            answer = function()
        return answer, len(found.writer.tensors)
    options = dict(mode)
    steps = options.pop("steps", None)
    with recorded_sessions(None if steps is None else StepSet.parse(steps), **options) as sessions:
        answer = function()
    return answer, 0 if options.get("captures") else len(sessions.ops())


def main(kind, wanted):
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    if kind == "session":
        v1.disable_eager_execution()
        MODES["streams"] = {"streams": True}
    for name, function in PROGRAMS[kind].items():
        if wanted and name not in wanted:
            continue
        line: dict[str, Any] = {"program": name}
        try:
            v1.reset_default_graph()
            plain, _ = run(function, None, kind)
            v1.reset_default_graph()
            line["again"] = same(plain, run(function, None, kind)[0])
            for title, mode in MODES.items():
                v1.reset_default_graph()
                answer, tensors = run(function, mode, kind)
                line[title] = {"same": same(plain, answer), "tensors": tensors}
        except Exception:  # noqa: BLE001  one program that fails does not hide the others
            line["failed"] = traceback.format_exc()
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
