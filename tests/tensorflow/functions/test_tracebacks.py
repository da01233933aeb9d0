"""Errors of a program look the same with and without `opdump run`: frames of the program, and none of opdump."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = {
    "a session": """
import tensorflow.compat.v1 as tf
tf.disable_eager_execution()
x, index = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.int32, [])
def network():
    return tf.gather(tf.exp(x), index)
result = network()
with tf.Session() as session:
    session.run(result, {x: [1.0], index: 0})
    session.run(result, {x: [1.0], index: 5})
""",
    "a session that asks for its dump": """
import os
import tensorflow.compat.v1 as tf
tf.disable_eager_execution()
config = tf.ConfigProto()
optimizer = config.graph_options.rewrite_options.custom_optimizers.add()
optimizer.name = "NpuOptimizer"
optimizer.parameter_map["enable_dump"].b = True
optimizer.parameter_map["dump_path"].s = os.getcwd().encode()
def train():
    with tf.Session(config=config) as session:
        session.run(tf.gather(tf.exp([1.0]), 5))
train()
""",
    "a callback in a session": """
import tensorflow.compat.v1 as tf
tf.disable_eager_execution()
def mine(x):
    raise ValueError("mine")
with tf.train.MonitoredTrainingSession() as session:
    session.run(tf.py_func(mine, [tf.constant(1.0)], tf.float32))
""",
    "a function": """
import tensorflow as tf
@tf.function
def step(x, index):
    return tf.gather(tf.exp(x), index)
def train():
    step(tf.constant([1.0]), tf.constant(0))
    step(tf.constant([1.0]), tf.constant(5))
train()
""",
    "a callback in a function": """
import keras
import tensorflow as tf
def mine(x):
    raise ValueError("mine")
def train():
    weight = tf.Variable([1.0])
    optimizer = keras.optimizers.SGD(0.1)
    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * x)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return tf.py_function(mine, [loss], tf.float32)
    step(tf.constant([1.0]))
train()
""",
    "Keras": """
import keras
import numpy as np
import tensorflow as tf
class Wrong(keras.layers.Layer):
    def call(self, x):
        return tf.gather(x, tf.cast(0.0 * x[0, 0] + 9.0, tf.int32), axis=0) + x
model = keras.Sequential([keras.layers.Dense(2), Wrong()])
model.compile("sgd", "mse")
def train():
    model.fit(np.ones((8, 3), np.float32), np.ones((8, 2), np.float32), verbose=0)
train()
""",
    "an eager operator": """
import tensorflow as tf
def train():
    return tf.gather(tf.exp(tf.constant([1.0])), 5)
train()
""",
    "an optimizer": """
import keras
import tensorflow as tf
def train():
    keras.optimizers.SGD(0.1).apply_gradients([(tf.constant("text"), tf.Variable([1.0]))])
train()
""",
    "a data set": """
import tensorflow as tf
def train():
    for _ in tf.data.Dataset.range(3).map(lambda x: tf.gather(tf.constant([1.0]), x)):
        pass
train()
""",
}
# Functions are numbered, and a capture uses numbers.
NUMBER = re.compile(r"(__inference_\w+?)_\d+\b")


def _error(arguments: list[str | Path], folder: Path) -> str:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    told = done.stderr[done.stderr.index("Traceback (most recent call last):") :]
    assert "comes from opdump" not in done.stderr
    return NUMBER.sub(r"\1", "\n".join(line for line in told.splitlines() if not line.startswith("opdump: ")))


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_error_reads_as_without_opdump(name: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAMS[name], encoding="utf-8")
    plain = _error([script], tmp_path)
    asked = ["--path", "dump"] if "NpuOptimizer" not in PROGRAMS[name] else []
    assert _error(["-m", "opdump", "run", *asked, script], tmp_path) == plain
    assert "train.py" in plain


@pytest.mark.parametrize("name", ["a session that asks for its dump", "a callback in a function"])
def test_an_error_that_the_program_prints_reads_as_without_opdump(name: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    printed = (
        "\nimport sys, traceback\ntry:\n    train()\nexcept Exception:\n    traceback.print_exc()\n    sys.exit(1)\n"
    )
    script.write_text(PROGRAMS[name].replace("\ntrain()\n", printed), encoding="utf-8")
    plain = _error([script], tmp_path)
    asked = ["--path", "dump"] if "NpuOptimizer" not in PROGRAMS[name] else []
    assert _error(["-m", "opdump", "run", *asked, script], tmp_path) == plain
    assert "in train" in plain
