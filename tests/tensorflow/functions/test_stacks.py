"""The source lines of operators.

A comment `# name` at the end of a line names it. Every operator, even one without data, must have lines of this file, the innermost first.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc"

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import _pytest
import keras
import numpy as np
import pluggy
import pytest
import tensorflow as tf

import opdump
from tests.tensorflow.functions.recording import recorded
from tests.tensorflow.sessions.recording import recorded as recorded_sessions

X = np.array([[0.5, 2.0]], np.float32)
PYTEST = tuple(f"{Path(module.__file__ or '').parent}/" for module in (_pytest, pluggy, pytest))
"""Packages that call the tests; all other frames must be from this file."""
LINES = Path(__file__).read_text(encoding="utf-8").splitlines()
v1 = tf.compat.v1
EXAMPLES = Path(__file__).parents[3] / "examples" / "tensorflow"
PROGRAM = """\
import tensorflow as tf

@tf.function
def loss_of(weight):
    shifted = weight - 1.0
    return tf.reduce_sum(
        tf.math.log(shifted)
    )

weight = tf.Variable([1.0, 3.0])
with tf.GradientTape() as tape:
    loss = loss_of(weight)
print(tape.gradient(loss, weight).numpy())
"""


def named(op):
    """The names of the lines of this file in an operator's stack, innermost first; the numbers of lines without a name."""
    lines = [frame for frame in op.stack if frame.file == __file__]
    texts = [LINES[frame.line - 1] for frame in lines]
    assert [frame.code for frame in lines] == [text.strip() for text in texts]
    return [
        text.rpartition("  # ")[2] if "  # " in text else str(frame.line)
        for frame, text in zip(lines, texts, strict=True)
    ]


def hold(ops, **lines):
    """Assert that each operator has a stack with only lines of this file and of pytest, and that operators of a given type have the given lines."""
    assert ops
    for op in ops:
        assert op.stack, f"{op.op_type} {op.op_name} ({op.skip}) has no stack"
        assert op.stack[0].file == __file__, (op.op_name, op.stack)
        others = {frame.file for frame in op.stack if not frame.file.startswith(PYTEST)}
        assert others == {__file__}, (op.op_name, op.stack)
    for op_type, expected in lines.items():
        found = {tuple(named(op)[: len(expected)]) for op in ops if op.op_type == op_type}
        assert found == {tuple(expected)}, (op_type, found)


def test_operators_of_a_session_have_the_lines_that_made_them() -> None:
    def layer(x, weight):
        return tf.matmul(x, weight)  # product

    with tf.Graph().as_default(), recorded() as recording:
        x = v1.placeholder(tf.float32, [1, 2])  # placeholder
        weight = v1.get_variable("w", initializer=tf.ones([2, 2]), use_resource=True)
        hidden = tf.tanh(layer(x, weight))  # hidden
        chosen = v1.cond(tf.reduce_sum(hidden) > 0, lambda: tf.exp(hidden), lambda: tf.sin(hidden))  # branches
        inner = tf.function(lambda y: y + tf.floor(y))(chosen)  # inner
        loss = tf.reduce_sum(inner)
        train = v1.train.AdamOptimizer(0.1).minimize(loss)  # train
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for _ in range(2):
                session.run([train, loss], {x: X})  # run
    hold(
        recording.writer.ops,
        Placeholder=["placeholder"],
        Tanh=["hidden"],
        TanhGrad=["train"],
        ResourceApplyAdam=["train"],
        Exp=["branches"],
        Floor=["inner"],
    )
    (forward, *_) = [op for op in recording.writer.ops if op.op_type == "MatMul" and "gradients" not in op.op_name]
    assert named(forward)[:2] == ["product", "hidden"]


def test_a_lambda_that_calls_itself_has_a_line_for_each_call() -> None:
    own: dict[str, Any] = {}
    own["again"] = lambda n, x: own["again"](n - 1, x) if n else tf.sin(x)  # again
    traced = tf.function(lambda x: own["again"](2, x), autograph=False)  # traced
    with tf.Graph().as_default(), recorded() as recording:
        made = own["again"](2, tf.constant(X))  # made
        with v1.Session() as session:
            session.run(tf.reduce_sum(made))
    hold(recording.writer.ops, Sin=["again", "again", "again", "made"])
    with recorded() as recording:
        traced(tf.constant(X))
    hold(recording.writer.ops, Sin=["again", "again", "again", "traced"])


def test_streamed_operators_of_a_session_have_the_lines_that_made_them() -> None:
    with tf.Graph().as_default(), recorded_sessions(streams=True) as recording:
        made = tf.sin(tf.constant(X))  # sine
        with v1.Session() as session:
            session.run(tf.reduce_sum(made))  # sum
    hold(list(recording.catalog.ops(include_skipped=True)), Sin=["sine"], Sum=["sum"])


def test_operators_of_an_imported_graph_have_the_line_that_ran_it() -> None:
    with tf.Graph().as_default() as graph:
        tf.sin(v1.placeholder(tf.float32, [1, 2], name="x"), name="sine")
    for streams in (False, True):
        with tf.Graph().as_default(), recorded_sessions(streams=streams) as recording:
            tf.import_graph_def(graph.as_graph_def(), name="")
            with v1.Session() as session:
                session.run("sine:0", {"x:0": X})  # run imported
        hold(list(recording.catalog.ops(include_skipped=True)), Sin=["run imported"], Placeholder=["run imported"])


def test_operators_of_functions_have_the_lines_that_were_traced() -> None:
    @tf.function
    def inner(x):
        return tf.cos(x) + 1  # cosine

    @tf.function
    def outer(x):
        x = inner(x)  # call of inner
        if tf.reduce_sum(x) > 100:  # condition
            x = x + tf.floor(x)  # not taken
        for _ in tf.range(2):  # loop
            x = tf.tanh(x)  # body
        return x

    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = outer(x)  # call of outer
        return tape.gradient(y, x)  # gradient

    x = tf.constant(X)
    with recorded() as recording:
        gradient(x)  # call
        gradient(x)
    hold(
        recording.writer.ops,
        Floor=["not taken", "condition", "call of outer", "call"],
        Greater=["condition", "call of outer", "call"],
        Tanh=["body", "loop", "call of outer", "call"],
        TanhGrad=["gradient", "call"],
    )
    cosine, _ = recording.ops(op_type="Cos")[:2]
    assert named(cosine)[:4] == ["cosine", "call of inner", "call of outer", "call"], named(cosine)


def test_operators_of_functions_traced_before_the_capture_have_their_lines() -> None:
    run = tf.function(lambda x: tf.exp(x) * 2)  # exponential
    run(tf.constant(X))  # first call
    with recorded() as recording:
        run(tf.constant(X))  # second call
    hold(recording.writer.ops, Exp=["exponential", "first call"])


def test_operators_of_a_loaded_model_have_the_line_that_called_it() -> None:
    module = tf.Module()
    module.run = tf.function(lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: tf.exp(x), lambda: tf.sin(x)))
    module.run(tf.constant(X))
    folder = tempfile.mkdtemp()
    tf.saved_model.save(module, folder)
    loaded = tf.saved_model.load(folder)
    with recorded() as recording:
        loaded.run(tf.constant(X))  # call of what was loaded
    hold(recording.writer.ops, Exp=["call of what was loaded"], Sin=["call of what was loaded"])


@keras.saving.register_keras_serializable()
class Scaled(keras.layers.Layer):
    def call(self, x):
        return tf.sin(x) * 2  # in the layer


def test_operators_of_keras_have_the_line_of_fit_or_of_the_layer() -> None:
    model = keras.Sequential([keras.layers.Dense(3, activation="relu"), Scaled(), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", metrics=["mae"])
    x, y = np.ones((4, 2), np.float32), np.ones((4, 1), np.float32)
    with recorded() as recording:
        model.fit(x, y, batch_size=2, verbose=0)  # fit
        model.predict(x, verbose=0)  # predict
    hold(recording.writer.ops, ReluGrad=["fit"])
    assert {tuple(named(op)[:2]) for op in recording.ops(op_type="Sin")} == {
        ("in the layer", "fit"),
        ("in the layer", "predict"),
    }
    assert {named(op)[0] for op in recording.ops(op_type="Relu")} == {"fit", "predict"}


def test_eager_operators_have_the_lines_that_ran_them() -> None:
    def loss_of(x):
        return tf.reduce_sum(tf.sin(x) * weight)  # forward

    weight = tf.Variable(X)
    optimizer = keras.optimizers.SGD(0.1)
    with recorded() as recording:
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = loss_of(weight)  # call of loss
            optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])  # update
        tf.map_fn(lambda x: tf.floor(x) * 2, tf.constant(X))  # mapped
        tf.py_function(lambda x: tf.exp(x) * 2, [tf.constant(X)], tf.float32)  # called back
    hold(
        recording.writer.ops,
        Sin=["forward", "call of loss"],
        Floor=["mapped"],
        Exp=["called back"],
    )


def test_operators_of_a_thread_without_own_lines_have_the_line_that_started_it() -> None:
    traced = tf.function(tf.exp)
    with recorded() as recording, ThreadPoolExecutor(1) as pool:
        list(pool.map(tf.floor, [tf.constant(X)] * 2))  # submitted
        pool.submit(traced, tf.constant(X)).result()  # traced there
        thread = threading.Thread(target=tf.sin, args=(X,))
        thread.start()  # started
        thread.join()
    hold(recording.writer.ops, Floor=["submitted"], Exp=["traced there"], Sin=["started"])


def test_functions_of_data_sets_have_the_lines_that_were_traced() -> None:
    with recorded() as recording:
        data = tf.data.Dataset.from_tensor_slices(X).map(lambda x: tf.sin(x) * 2)  # map
        for batch in data:  # iteration
            tf.exp(batch)  # in the loop
    hold(recording.writer.ops, Sin=["map"], Exp=["in the loop"])


def test_operators_of_a_notebook_cell_have_the_lines_of_the_cell() -> None:
    """A file with the name of IPython's shell stands in for it, because frames are recognised by that name."""
    shell: dict[str, Any] = {"__name__": "IPython.core.interactiveshell"}
    source = "def run_code(code, names): exec(code, names)"
    exec(compile(source, "/somewhere/IPython/core/interactiveshell.py", "exec"), shell)
    cell = (
        "import tensorflow as tf\ndef f(x):\n    return tf.exp(x)\ntraced = tf.function(f, autograph=False)\n"
        "f(tf.constant(1.0))\ntraced(tf.constant(1.0))\n"
        "with tf.Graph().as_default(), tf.compat.v1.Session() as session:\n    session.run(f(tf.constant(1.0)))\n"
    )
    with recorded() as recording:
        shell["run_code"](compile(cell, "/tmp/ipykernel_1/2.py", "exec"), {})
    stacks = [op.stack for op in recording.ops(op_type="Exp")]
    assert {frame.file for stack in stacks for frame in stack} == {"/tmp/ipykernel_1/2.py"}, stacks
    assert [[frame.line for frame in stack] for stack in stacks] == [[3, 5], [3, 6], [3, 8]], stacks


@pytest.mark.parametrize("example", ["train_session.py", "train_estimator.py"])
def test_every_operator_of_the_examples_has_its_line(example, tmp_path) -> None:
    _opdump("run", EXAMPLES / example, tmp_path)
    (dump,) = tmp_path.glob("[0-9]*")
    catalog = opdump.open(dump)
    operators = list(catalog.ops(include_skipped=True))
    without = {(op.op_type, op.op_name, op.skip) for op in operators if not op.stack}
    assert operators
    assert not without
    assert {Path(op.stack[0].file).name for op in operators} == {example}
    convolutions = {op.stack[0].code for op in operators if op.op_type == "Conv2D"}
    assert len(convolutions) == 1
    assert "conv2d" in convolutions.pop()


def test_the_verdict_and_show_name_the_line(tmp_path) -> None:
    program, dump = tmp_path / "train.py", tmp_path / "dump"
    program.write_text(PROGRAM, encoding="utf-8")
    printed = _opdump("run", "--path", dump, "--full", program).stderr
    assert re.search(r"first infinity: step 0, tf::Log at train\.py:7, 1 of 2 elements of output\.0", printed), printed
    shown = _opdump("show", dump, "--source", "train.py:7").stdout
    assert re.search(r"\bLog\b", shown), shown
    assert "Sub" not in shown
    shown = _opdump("show", dump, "--op", "Log").stdout
    assert f"{program}:7  tf.math.log(shifted)" in shown
    assert f"{program}:12  loss = loss_of(weight)" in shown
    assert "opdump/" not in shown.replace(str(dump), "")


def _opdump(*arguments):
    command = [sys.executable, "-m", "opdump", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True)
