"""A training with a learning rate that makes it diverge: `opdump show` names the operator that made the first infinity, in each later step."""

# The programs are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc"

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import opdump
from opdump.checks.tensor_checks import Thresholds
from opdump.plan import DumpPlan
from opdump.reports.findings import check_dump

v1 = tf.compat.v1
X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)
Y = X.sum(1, keepdims=True)
ONES = np.ones((4, 1), np.float32)
LAYER = "net/out/MatMul" if tf.__version__.startswith("2.15.") else "net_1/out_1/MatMul"
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
            # With targets Y, some processors would compute a gradient of zero; the rate times zero is NaN, and that product would be named.
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


ORIGINS = {
    "too_large_for_two_layers": ("", LAYER, *[f"{LAYER} (in step 1)"] * 3),
    "an_infinite_rate_of_keras": (
        "learning_rate/AssignVariableOp_0",
        *["learning_rate/AssignVariableOp_0 (in step 0)"] * 4,
    ),
    "an_infinite_rate_of_a_loop": (
        "learning_rate/AssignVariableOp_0",
        *["learning_rate/AssignVariableOp_0 (in step 0)"] * 2,
    ),
    "a_product_of_a_function": ("mul", "mul (in step 0)", "mul (in step 0)"),
    "an_update_that_overflows": ("ResourceApplyGradientDescent", *["ResourceApplyGradientDescent (in step 0)"] * 2),
    "an_update_of_a_session": ("", *["train/update_w/ResourceApplyGradientDescent (in step 0)"] * 2),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dumps of all programs, each in a directory with its name."""
    root = tmp_path_factory.mktemp("poisoned")
    for name, function in PROGRAMS.items():
        keras.utils.set_random_seed(0)
        with opdump.capture(DumpPlan(path=root / name, saved_data="statistic"), framework="tensorflow") as dump:
            function()
        assert dump.report is not None
        dump.report.raise_for_gaps()
    return root


@pytest.mark.parametrize("name", ORIGINS)
def test_the_operator_that_made_the_first_infinity_is_named_in_each_step(name: str, root: Path) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "opdump", "show", root / name], check=True, capture_output=True, text=True
    ).stdout
    header, *rows = shown.split("\n\n")[1].splitlines()
    place = header.index("first with nan/inf")
    assert len(rows) == len(ORIGINS[name]), shown
    for row, text in zip(rows, ORIGINS[name], strict=True):
        found = re.sub(r"-op\d+", "", row[place:].partition("  ")[0])
        # Keras 3 gives each optimizer a unique name.
        assert found == text or (found.endswith(f"/{text}") and text.startswith("learning_rate")), shown


def test_no_reader_of_a_poisoned_variable_is_an_origin_for_check(root: Path) -> None:
    for name in ORIGINS:
        findings = check_dump(opdump.open(root / name), Thresholds()).findings
        assert findings, name
        origins = {re.sub(r"-op\d+", "", each.op_name) for each in findings if each.origin}
        assert not {each for each in origins if "ReadVariableOp" in each or "Iterator" in each}, name
        made = {"too_large_for_two_layers": LAYER, "a_product_of_a_function": "mul"}.get(name)
        assert made is None or made in origins, name
