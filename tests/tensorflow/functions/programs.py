"""Small TensorFlow programs: each call builds the program again, from fixed seeds, and returns its results.

The results are numbers that a capture must not change. A program calls `mark` where a step ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

Program = Callable[[], list[Any]]


def _images(count: int = 12) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 8, 8, 1)).astype(np.float32), rng.integers(0, 4, count)


def _network() -> Any:
    return keras.Sequential(
        [
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.5),
            # The runtime fuses or rewrites these, so reading intermediate values may change bits.
            keras.layers.Dense(8, activation="gelu"),
            keras.layers.LayerNormalization(),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(8, activation="swish"),
            keras.layers.Dense(4),
        ]
    )


def _compiled(**settings: Any) -> Any:
    keras.utils.set_random_seed(7)
    model = _network()
    model.compile(
        optimizer=keras.optimizers.Adam(0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        **settings,
    )
    return model


def keras_fit() -> list[Any]:
    model = _compiled()
    x, y = _images()
    history = model.fit(x, y, batch_size=4, epochs=2, verbose=0, validation_data=(x, y))
    return [*(history.history[key] for key in sorted(history.history)), *model.get_weights()]


def keras_several_steps_per_execution() -> list[Any]:
    model = _compiled(steps_per_execution=3)
    x, y = _images()
    history = model.fit(x, y, batch_size=4, epochs=2, verbose=0)
    return [*(history.history[key] for key in sorted(history.history)), *model.get_weights()]


def keras_batches() -> list[Any]:
    model = _compiled()
    x, y = _images()
    found = [model.train_on_batch(x[:4], y[:4]) for _ in range(4)]
    return [*map(np.asarray, found), np.asarray(model.evaluate(x, y, verbose=0)), model.predict(x, verbose=0)]


def custom_loop() -> list[Any]:
    """The network and its gradient in tf.functions; the tape and the optimizer outside."""
    keras.utils.set_random_seed(5)
    model = _network()
    optimizer = keras.optimizers.Adam(0.01)
    x, y = _images()
    model.build((None, 8, 8, 1))
    called = tf.function(lambda images: model(images, training=True))
    losses = []
    for _ in range(4):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, called(x)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        losses.append(loss.numpy())
    return [np.asarray(losses), *model.get_weights()]


def train_function() -> list[Any]:
    """A whole training step in one tf.function that creates its variables at the first call."""
    keras.utils.set_random_seed(3)
    model = _network()
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    x, y = _images()

    @tf.function
    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    # A function that is called more than once may not create the optimizer's variables.
    model.build((None, 8, 8, 1))
    optimizer.build(model.trainable_variables)
    losses = [step(x, y).numpy() for _ in range(4)]
    return [np.asarray(losses), *model.get_weights()]


def eager_loop() -> list[Any]:
    keras.utils.set_random_seed(5)
    model = _network()
    optimizer = keras.optimizers.Adam(0.01)
    x, y = _images()
    losses = []
    for _ in range(4):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        losses.append(loss.numpy())
    return [np.asarray(losses), *model.get_weights()]


def seeded_numbers() -> list[Any]:
    """Operators with their own random state, inside and outside of a loop."""
    tf.random.set_seed(11)

    @tf.function
    def draw(x: Any) -> Any:
        total = tf.nn.dropout(x, 0.5) + tf.random.normal([4])
        for _ in tf.range(3):
            # Iterations of a loop overlap, and TensorFlow does not define which of them draws first.
            with tf.control_dependencies([total]):
                uniform = tf.random.uniform([4])
            with tf.control_dependencies([uniform]):
                total += uniform + tf.random.truncated_normal([4])
        return total, tf.random.shuffle(tf.range(8)), tf.random.gamma([3], 2.0)

    found = [draw(tf.ones(4)) for _ in range(5)]
    return [np.asarray(each) for each in tf.nest.flatten(found)]


def numbers_seeded_by_operator() -> list[Any]:
    @tf.function
    def draw() -> Any:
        return tf.random.uniform([4], seed=3)

    return [draw().numpy() for _ in range(5)]


def numbers_of_a_generator() -> list[Any]:
    generator = tf.random.Generator.from_seed(4)

    @tf.function
    def draw(seed: Any) -> Any:
        return generator.normal([4]), tf.random.stateless_uniform([4], seed=[seed, 2])

    found = [draw(tf.constant(number)) for number in range(5)]
    return [np.asarray(each) for each in tf.nest.flatten(found)]


def eager_numbers() -> list[Any]:
    tf.random.set_seed(11)
    return [(tf.random.normal([4]) + tf.nn.dropout(tf.ones(4), 0.5)).numpy() for _ in range(5)]


def control_flow() -> list[Any]:
    factor = tf.Variable(1.5)

    @tf.custom_gradient
    def halved(x: Any) -> Any:
        return x / 2, lambda gradient: gradient * 3

    @tf.function
    def inner(x: Any) -> Any:
        return halved(tf.tanh(x)) * factor

    @tf.function
    def run(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            while tf.reduce_sum(y) < 20.0:
                y = y * factor + tf.sin(y)
            if tf.reduce_max(x) > 1.0:
                y = inner(y) + inner(x)
                y = y * 2.0
            else:
                y = tf.cos(inner(y))
            z = tf.map_fn(lambda each: tf.exp(each) + inner(each), y)
            w = tf.switch_case(tf.cast(x[0], tf.int32), [lambda: z * 2, lambda: z * 3])
        factor.assign_add(0.1)
        return w, tape.gradient(w, x)

    found = [run(tf.constant([1.0, 1.0 + number, 0.5])) for number in range(4)]
    return [np.asarray(each) for each in tf.nest.flatten(found)] + [factor.numpy()]


def second_derivatives() -> list[Any]:
    variable = tf.Variable([1.0, 2.0])

    @tf.function
    def curve(x: Any) -> Any:
        return tf.reduce_sum(tf.sin(x) * variable**3)

    found = []
    for _ in range(3):
        with tf.GradientTape() as outer:
            with tf.GradientTape(persistent=True) as tape:
                value = curve(variable * 2)
            gradient = tape.gradient(value, variable)
        found += [value.numpy(), gradient.numpy(), outer.gradient(gradient, variable).numpy()]
        variable.assign_sub(0.1 * gradient)
    return found


def fused_operators() -> list[Any]:
    """Matrix products and convolutions with bias and activation, which the runtime fuses if nothing reads the intermediate values."""
    rng = np.random.default_rng(1)
    weights = [
        tf.constant(rng.normal(size=shape).astype(np.float32)) for shape in ((3, 3, 3, 8), (8,), (288, 16), (16,))
    ]

    @tf.function
    def net(x: Any) -> Any:
        y = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, weights[0], 1, "SAME"), weights[1]))
        y = tf.nn.elu(tf.nn.bias_add(tf.matmul(tf.reshape(y, [-1, 288]), weights[2]), weights[3]))
        return tf.nn.softmax(tf.nn.gelu(y) * tf.math.rsqrt(tf.abs(y) + 0.1))

    x = rng.normal(size=(4, 6, 6, 3)).astype(np.float32)
    return [net(tf.constant(x * number)).numpy() for number in range(1, 4)]


def rewritten_arithmetic() -> list[Any]:
    """Arithmetic that the runtime rewrites if nothing reads the intermediate values."""
    rng = np.random.default_rng(2)
    scale = tf.constant(rng.normal(size=16).astype(np.float32))

    @tf.function
    def run(x: Any) -> Any:
        mean = tf.reduce_mean(x, -1, keepdims=True)
        spread = tf.sqrt(tf.math.reduce_variance(x, -1, keepdims=True) + 1e-3)
        y = (x - mean) / spread * scale + scale
        return y * 3.0 * 1.7 * 0.3 + y * tf.sigmoid(y) / tf.sqrt(tf.abs(y) + 0.1)

    return [run(tf.constant(rng.normal(size=(64, 16)).astype(np.float32))).numpy() for _ in range(3)]


def fed_from_a_dataset() -> list[Any]:
    data = tf.data.Dataset.range(6).map(lambda number: tf.cast(number, tf.float32) * 2.0).batch(2)

    @tf.function
    def consume(batches: Any) -> Any:
        total = tf.zeros([2])
        for batch in batches:
            total += tf.sqrt(batch)
        return total

    return [consume(data).numpy() for _ in range(3)]


def sums_in_a_loop_with_effects() -> list[Any]:
    """Sums whose order depends on what else reads the inputs of the body."""
    rng = np.random.default_rng(4)
    total = tf.Variable(np.zeros(500, np.float32))
    given = [tf.constant(rng.normal(size=500).astype(np.float32)) for _ in range(4)]

    @tf.function
    def run(x: Any, y: Any, z: Any, w: Any) -> Any:
        for _ in tf.range(4):
            three = tf.tanh(tf.add_n([x, y, tf.exp(z)]))
            total.assign_add(three)
            x, y, z, w = three * 1.1, tf.sin(three) * 0.3, tf.cos(z), tf.tanh((w + tf.sin(z)) + tf.exp(-z))
        return (x + y) + (z + w)

    return [*(run(*given).numpy() for _ in range(3)), total.numpy()]


PROGRAMS: dict[str, Program] = {
    program.__name__: program
    for program in (
        keras_fit,
        keras_several_steps_per_execution,
        keras_batches,
        custom_loop,
        train_function,
        eager_loop,
        seeded_numbers,
        numbers_seeded_by_operator,
        numbers_of_a_generator,
        eager_numbers,
        control_flow,
        second_derivatives,
        fused_operators,
        rewritten_arithmetic,
        fed_from_a_dataset,
        sums_in_a_loop_with_effects,
    )
}
