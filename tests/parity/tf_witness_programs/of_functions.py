"""Programs of functions. Each receives `step`, a context for each step by number, and a separate directory."""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc, name-defined"

from __future__ import annotations

from contextlib import ExitStack

import keras
import numpy as np
import tensorflow as tf

STEPS = 3


class _Steps(keras.callbacks.Callback):
    """Makes each batch of `fit` a step."""

    def __init__(self, step):
        super().__init__()
        self._step, self._running = step, ExitStack()

    def on_train_batch_begin(self, batch, logs=None):
        self._running.enter_context(self._step(batch))

    def on_train_batch_end(self, batch, logs=None):
        self._running.close()


def _fit(model, x, y, step, loss="sparse_categorical_crossentropy"):
    model.compile(keras.optimizers.Adam(1e-3), loss)
    size = len(x) // STEPS
    model.fit(x, y, batch_size=size, epochs=1, shuffle=False, verbose=0, callbacks=[_Steps(step)])


def mobile_net(step, folder):
    """MobileNetV2 with `fit`."""
    numbers = np.random.default_rng(0)
    model = keras.applications.MobileNetV2((32, 32, 3), 0.35, weights=None, classes=4)
    _fit(model, numbers.random((2 * STEPS, 32, 32, 3), np.float32), numbers.integers(0, 4, 2 * STEPS), step)


def lstm(step, folder):
    """Two LSTM layers on embedded words, with `fit`."""
    numbers = np.random.default_rng(0)
    model = keras.Sequential(
        [
            keras.layers.Embedding(20, 8),
            keras.layers.LSTM(8, return_sequences=True, dropout=0.2),
            keras.layers.LSTM(6),
            keras.layers.Dense(3, "softmax"),
        ]
    )
    _fit(model, numbers.integers(0, 20, (4 * STEPS, 7)), numbers.integers(0, 3, 4 * STEPS), step)


def transformer(step, folder):
    """A transformer block, with `fit`."""
    numbers = np.random.default_rng(0)
    words = keras.Input((6,), dtype="int32")
    x = keras.layers.Embedding(20, 8)(words)
    attended = keras.layers.MultiHeadAttention(2, 4, dropout=0.1)(x, x, use_causal_mask=True)
    x = keras.layers.LayerNormalization()(x + attended)
    x = keras.layers.LayerNormalization()(x + keras.layers.Dense(8)(keras.layers.Dense(16, "gelu")(x)))
    model = keras.Model(words, keras.layers.Dense(20, "softmax")(x))
    _fit(model, numbers.integers(0, 20, (4 * STEPS, 6)), numbers.integers(0, 20, (4 * STEPS, 6)), step)


def gan(step, folder):
    """A GAN with a custom loop: one step is a function, the other is eager."""
    generator = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(4, "tanh")])
    critic = keras.Sequential([keras.layers.Dense(8, keras.layers.LeakyReLU()), keras.layers.Dense(1)])
    entropy = keras.losses.BinaryCrossentropy(from_logits=True)
    of_generator, of_critic = keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.05, momentum=0.9)
    real = tf.constant(np.random.default_rng(0).random((8, 4), np.float32))

    @tf.function
    def train_critic(noise):
        with tf.GradientTape() as tape:
            false, true = critic(generator(noise)), critic(real)
            loss = entropy(tf.ones_like(true), true) + entropy(tf.zeros_like(false), false)
        variables = critic.trainable_variables
        of_critic.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    def train_generator(noise):
        with tf.GradientTape() as tape:
            false = critic(generator(noise))
            loss = entropy(tf.ones_like(false), false)
        variables = generator.trainable_variables
        of_generator.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    for number in range(STEPS):
        noise = tf.random.stateless_normal((8, 3), (1, number))
        with step(number):
            train_critic(noise)
            train_generator(noise)
