"""Where a step of a training loop ends, in loops of every common form: docs/tensorflow-functions.md states the rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.tensorflow.functions.recording import recorded

LOOPS = 3
X = tf.constant([[1.0, 2.0], [3.0, 4.0]])


class _Given:
    """Two trained variables; each forward computes a sine, and each backward a cosine."""

    def __init__(self) -> None:
        self.weight = tf.Variable([[0.1, 0.2], [0.3, 0.4]])
        self.bias = tf.Variable([0.5, 0.6])
        self.average = tf.Variable([0.0, 0.0], trainable=False)
        self.both = [self.weight, self.bias]

    def loss(self) -> Any:
        return tf.reduce_sum(tf.sin(X @ self.weight + self.bias))


def _with_an_optimizer(given: _Given) -> None:
    optimizer = keras.optimizers.Adam(0.1)
    for _ in range(LOOPS):
        with tf.GradientTape() as tape:
            loss = given.loss()
        optimizer.apply_gradients(zip(tape.gradient(loss, given.both), given.both, strict=True))


def _by_hand(given: _Given) -> None:
    for _ in range(LOOPS):
        with tf.GradientTape() as tape:
            loss = given.loss()
        for variable, gradient in zip(given.both, tape.gradient(loss, given.both), strict=True):
            variable.assign_sub(0.1 * gradient)


def _by_hand_with_an_average(given: _Given) -> None:
    for _ in range(LOOPS):
        with tf.GradientTape() as tape:
            loss = given.loss()
        given.weight.assign(given.weight - 0.1 * tape.gradient(loss, given.weight))
        given.average.assign(0.9 * given.average + 0.1 * given.bias)


def _accumulated(given: _Given) -> None:
    for _ in range(LOOPS):
        total = tf.zeros([2, 2])
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = given.loss()
            total += tape.gradient(loss, given.weight)
        given.weight.assign_sub(0.1 * total)


def _two_optimizers_in_a_row(given: _Given) -> None:
    first, second = keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.1)
    for _ in range(LOOPS):
        with tf.GradientTape() as one, tf.GradientTape() as other:
            loss = given.loss()
        first.apply_gradients([(one.gradient(loss, given.weight), given.weight)])
        second.apply_gradients([(other.gradient(loss, given.bias), given.bias)])


def _a_network_after_the_other(given: _Given) -> None:
    optimizers = keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.2)
    for _ in range(LOOPS):
        for variable, optimizer in zip(given.both, optimizers, strict=True):
            with tf.GradientTape() as tape:
                loss = given.loss()
            optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])


def _in_a_function_by_hand(given: _Given) -> None:
    @tf.function
    def train() -> None:
        with tf.GradientTape() as tape:
            loss = given.loss()
        for variable, gradient in zip(given.both, tape.gradient(loss, given.both), strict=True):
            variable.assign_sub(0.1 * gradient)

    for _ in range(LOOPS):
        tf.sin(0.0)
        train()


def _gradients_of_a_function(given: _Given) -> None:
    @tf.function
    def gradients() -> Any:
        with tf.GradientTape() as tape:
            loss = given.loss()
        return tape.gradient(loss, given.both)

    for _ in range(LOOPS):
        found = gradients()
        tf.sin(0.0)
        for variable, gradient in zip(given.both, found, strict=True):
            variable.assign_sub(0.1 * gradient)


def _a_function_that_assigns(given: _Given) -> None:
    @tf.function
    def apply(gradients: Any) -> None:
        for variable, gradient in zip(given.both, gradients, strict=True):
            variable.assign_sub(0.1 * gradient)

    for _ in range(LOOPS):
        with tf.GradientTape() as tape:
            loss = given.loss()
        apply(tape.gradient(loss, given.both))


def _a_function_under_the_tape(given: _Given) -> None:
    network = tf.function(given.loss)
    for _ in range(LOOPS):
        with tf.GradientTape() as tape:
            loss = network()
        tf.sin(0.0)
        given.weight.assign_sub(0.1 * tape.gradient(loss, given.weight))


def _no_update(given: _Given) -> None:
    for _ in range(LOOPS):
        with tf.GradientTape() as tape:
            loss = given.loss()
        given.average.assign_add(tape.gradient(loss, given.bias))


def _gradients_by_hand(given: _Given) -> None:
    optimizer = keras.optimizers.SGD(0.1)
    for _ in range(LOOPS):
        optimizer.apply_gradients([(tf.sin(given.bias), given.bias)])


def _keras_without_functions(given: _Given) -> None:
    class Sine(keras.layers.Layer):  # type: ignore[misc]  # Keras has no types
        def call(self, x: Any) -> Any:
            return tf.sin(x)

    model = keras.Sequential([keras.layers.Dense(2), keras.layers.BatchNormalization(), Sine()])
    model.compile("adam", "mse", metrics=["mae"], run_eagerly=True)
    model.fit(np.ones((2 * LOOPS, 3), np.float32), np.ones((2 * LOOPS, 2), np.float32), batch_size=2, verbose=0)


# The steps of the sines, in order.
PROGRAMS: dict[Callable[[_Given], None], list[int]] = {
    _with_an_optimizer: [0, 1, 2],
    _by_hand: [0, 1, 2],
    _by_hand_with_an_average: [0, 1, 2],
    _accumulated: [0, 0, 1, 1, 2, 2],
    _two_optimizers_in_a_row: [0, 1, 2],
    _a_network_after_the_other: [0, 1, 2, 3, 4, 5],
    _in_a_function_by_hand: [0, 1, 2],
    _gradients_of_a_function: [0, 1, 2],
    _a_function_that_assigns: [0, 1, 2],
    _a_function_under_the_tape: [0, 1, 2],
    _no_update: [0, 0, 0],
    _gradients_by_hand: [0, 1, 2],
    _keras_without_functions: [0, 1, 2],
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__.strip("_"))
def test_a_step_ends_where_variables_were_updated_and_the_next_forward_begins(program: Any) -> None:
    with recorded() as recording:
        program(_Given())
    assert [op.step for op in recording.ops(op_type="Sin") if "_" in op.op_name] == PROGRAMS[program]


@pytest.mark.parametrize("program", [_by_hand, _two_optimizers_in_a_row, _by_hand_with_an_average])
def test_all_of_an_update_is_in_the_step_that_it_ends(program: Any) -> None:
    with recorded() as recording:
        program(_Given())
    types = [sorted(op.op_type for op in recording.ops(step=step)) for step in range(LOOPS)]
    names = [op.op_name for op in recording.ops(step=1)]
    assert len(set(names)) == len(names)
    assert sum("Assign" in op_type or "Apply" in op_type for op_type in types[1]) >= 2
    assert types[1] == types[2]
    with recorded(steps="1") as alone:
        program(_Given())
    assert sorted(op.op_type for op in alone.ops()) == types[1]


def test_the_program_ends_when_the_last_wanted_step_is_whole() -> None:
    with recorded(steps="1") as whole:
        _two_optimizers_in_a_row(_Given())
    went_on = False
    with recorded(steps="1", stop=True) as recording:
        _two_optimizers_in_a_row(_Given())
        went_on = True
    assert not went_on
    assert [op.op_type for op in recording.ops()] == [op.op_type for op in whole.ops()]


@pytest.mark.parametrize("program", [_with_an_optimizer, _by_hand, _a_network_after_the_other])
def test_steps_by_hand_override(program: Any) -> None:
    with recorded(manual=True) as recording:
        for _ in range(2):
            program(_Given())
            recording.clock.manual_step()
    sines = len(PROGRAMS[program])
    assert [op.step for op in recording.ops(op_type="Sin")] == [0] * sines + [1] * sines


def test_a_step_by_hand_right_after_an_optimizer_is_the_same_end() -> None:
    given, optimizer = _Given(), keras.optimizers.SGD(0.1)
    with recorded() as recording:
        for _ in range(LOOPS):
            with tf.GradientTape() as tape:
                loss = given.loss()
            optimizer.apply_gradients([(tape.gradient(loss, given.weight), given.weight)])
            recording.clock.manual_step()
    assert [op.step for op in recording.ops(op_type="Sin")] == [0, 1, 2]


def test_nothing_is_left_behind() -> None:
    before = {name: getattr(tf.Variable, name, None) for name in ("assign", "assign_sub")}, tf.GradientTape.gradient
    with recorded():
        _by_hand(_Given())
    assert ({name: getattr(tf.Variable, name, None) for name in before[0]}, tf.GradientTape.gradient) == before
