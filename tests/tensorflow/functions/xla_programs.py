"""The programs of the XLA tests: a network with different bits under XLA, trainings, sessions."""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc"

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tests.tensorflow.sessions.recording import recorded as recorded_sessions
from tests.tensorflow.sessions.recording import same

v1 = tf.compat.v1
X = np.random.default_rng(7).normal(size=(64, 64)).astype(np.float32)


def network(x):
    """Under XLA, the last bits of the result differ from those of TensorFlow's own kernels."""
    hidden = tf.nn.softmax(tf.tanh(tf.matmul(x, x) * 0.1 + 1.0))
    return tf.reduce_sum(tf.math.log1p(hidden) * tf.sigmoid(x), axis=1)


def launches(recording):
    return recording.ops(op_type="XlaLaunch")


def types(recording):
    return {op.op_type for op in recording.ops()}


def trained(**compiled):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(4, activation="softmax")])
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="sparse_categorical_crossentropy", **compiled)
    history = model.fit(X, np.arange(64) % 4, batch_size=16, epochs=2, shuffle=False, verbose=0)
    predicted = model.predict(X, batch_size=16, verbose=0)
    return history.history["loss"], model.get_weights(), predicted


def in_session(build, level=0, streams=False):
    """Run a session plain and under capture, and return the recording and the answer."""
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
