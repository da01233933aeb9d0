"""Programs that train and use Keras networks."""

# The programs are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc, name-defined"

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from tests.parity.tf_real_programs.given import IMAGES, LABELS, VALUES


def _classifier():
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


def keras_with_callbacks_and_metrics():
    folder = tempfile.mkdtemp()
    model = _classifier()
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


def keras_in_mixed_precision():
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        inputs = keras.Input((6,))
        x = keras.layers.Dense(8, activation="gelu")(inputs)
        x = keras.layers.LayerNormalization()(x)
        model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(x))
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        x = VALUES[:, :6]
        history = model.fit(x, x.sum(1, keepdims=True), batch_size=4, epochs=2, verbose=0)
        return [*(np.float32(each) for each in history.history["loss"]), *model.get_weights()]
    finally:
        keras.mixed_precision.set_global_policy("float32")


def custom_loop_over_a_pipeline():
    data = (
        tf.data.Dataset.from_tensor_slices((IMAGES, LABELS))
        .map(lambda image, label: (tf.image.flip_left_right(image) / 2.0, label), num_parallel_calls=2)
        .shuffle(16, seed=3)
        .batch(4)
        .repeat(2)
        .prefetch(2)
    )
    model, optimizer = _classifier(), keras.optimizers.Adam(0.01)
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
        history = model.fit(VALUES, VALUES[:, :1], batch_size=8, epochs=2, verbose=0)
        answers += [np.float32(each) for each in history.history["loss"]]
    return [*answers, *model.get_weights()]


def keras_with_summaries():
    folder = Path(tempfile.mkdtemp())

    class Summaries(keras.callbacks.Callback):
        """Writes what the TensorBoard callback writes; that one needs a separate package from TensorFlow 2.21 on."""

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
    model = _classifier()
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


def a_pipeline_of_python():
    calls = []

    def examples():
        for number in range(6):
            calls.append("example")
            yield VALUES[number], VALUES[number, :1]

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
        given = {key: tf.constant(VALUES[:3]) for key in signature.structured_input_signature[1]}
        found += [each.numpy() for _ in range(2) for each in signature(**given).values()]
    model.save(f"{folder}/model.keras")
    return [
        *found,
        keras.models.load_model(f"{folder}/model.keras").predict(VALUES, verbose=0),
        *model.get_weights(),
    ]


def keras_on_replicas():
    strategy = tf.distribute.MirroredStrategy([each.name for each in tf.config.list_logical_devices("CPU")])
    with strategy.scope():
        model = keras.Sequential(
            [keras.layers.Dense(8, activation="relu"), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    data = tf.data.Dataset.from_tensor_slices((VALUES, VALUES[:, :1])).map(lambda x, y: (x * 0.5, y)).batch(8)
    history = model.fit(data, epochs=2, verbose=0)
    return [
        *(np.float32(each) for values in history.history.values() for each in values),
        *(model.predict(VALUES, batch_size=8, verbose=0), *model.get_weights()),
    ]
