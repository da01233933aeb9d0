"""Trainings that a bad learning rate poisons, each dumped into a directory of its own.

usage: tf_poisoned.py DIRECTORY
"""

# The programs are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc"

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import opdump
from opdump.plan import DumpPlan

v1 = tf.compat.v1
X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)
Y = X.sum(1, keepdims=True)
ONES = np.ones((4, 1), np.float32)
PROGRAMS: dict[str, Any] = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def trained_with_keras(optimizer):
    model = keras.Sequential([keras.layers.Dense(3, name="hidden"), keras.layers.Dense(1, name="out")], name="net")
    model.compile(optimizer, "mse")
    model.fit(X, Y, batch_size=8, epochs=4, verbose=0)


@program
def too_large_for_two_layers():
    trained_with_keras(keras.optimizers.SGD(1e30))


@program
def an_infinite_rate_of_keras():
    trained_with_keras(keras.optimizers.Adam(float("inf")))


@program
def an_infinite_rate_of_a_loop():
    weight, optimizer = tf.Variable(ONES, name="w"), keras.optimizers.SGD(float("inf"))
    for _ in range(3):
        with tf.GradientTape() as tape:
            # Twice the sums: a gradient of zero, which some processors give for the sums, makes NaN of the rate and is named for that.
            loss = tf.reduce_mean((tf.constant(X) @ weight - 2 * Y) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])


def with_update(update):
    weight = tf.Variable(ONES, name="w")

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weight - y) ** 2)
        update(weight, tape.gradient(loss, weight))
        return loss

    for _ in range(3):
        step(tf.constant(X), tf.constant(2 * Y))


@program
def a_product_of_a_function():
    with_update(lambda weight, gradient: weight.assign_sub(tf.constant(3e38) * gradient * 10.0))


@program
def an_update_that_overflows():
    def update(weight, gradient):
        tf.raw_ops.ResourceApplyGradientDescent(var=weight.handle, alpha=3e38, delta=gradient * 50.0)

    with_update(update)


@program
def an_update_of_a_session():
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [None, 4])
        weight = v1.get_variable("w", initializer=ONES, use_resource=True)
        loss = tf.reduce_mean((x @ weight - 2 * Y) ** 2, name="loss")
        train = v1.train.GradientDescentOptimizer(3e38).minimize(50.0 * loss, name="train")
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for _ in range(3):
                session.run([train, loss], {x: X})


if __name__ == "__main__":
    for name, function in PROGRAMS.items():
        keras.utils.set_random_seed(0)
        with opdump.capture(
            DumpPlan(path=Path(sys.argv[1]) / name, saved_data="statistic"), framework="tensorflow"
        ) as dump:
            function()
        assert dump.report is not None
        dump.report.raise_for_gaps()
