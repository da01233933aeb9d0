"""Settings of a dump in the parameter_map of a session's config; also random numbers and graph rewritings."""

# The programs of the cases are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc"

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.client import session as session_module

import opdump
from opdump.errors import DumpPathError
from opdump.plan import StepSet
from tests.tensorflow.sessions.recording import recorded, same, v1

v1.disable_eager_execution()
v1.disable_control_flow_v2()
X = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)


def config_of(path, **parameters):
    config = v1.ConfigProto()
    optimizer = config.graph_options.rewrite_options.custom_optimizers.add()
    optimizer.name = "NpuOptimizer"
    for key, value in {"enable_dump": True, "dump_path": str(path), **parameters}.items():
        if isinstance(value, bool):
            optimizer.parameter_map[key].b = value
        elif isinstance(value, int):
            optimizer.parameter_map[key].i = value
        else:
            optimizer.parameter_map[key].s = str(value).encode()
    return config


def dumped(build, runs=4, **parameters):
    """Run a program that requests a dump; returns (directory, reports, answers)."""
    path = Path(tempfile.mkdtemp(prefix="opdump-test-"))
    opdump.tensorflow.install()
    with tf.Graph().as_default():
        fetches, feed = build()
        with v1.Session(config=config_of(path, **parameters)) as session:
            session.run(v1.global_variables_initializer())
            answers = [session.run(fetches, feed) for _ in range(runs)]
    return path, opdump.tensorflow.finish(), answers


def network():
    x = v1.placeholder(tf.float32, [None, 8], name="x")
    w = v1.get_variable("w", initializer=np.full((8, 1), 0.5, np.float32), use_resource=True)
    loss = tf.reduce_sum(tf.square(tf.matmul(x, w, name="net/mm"), name="net/square"), name="loss")
    return [v1.train.GradientDescentOptimizer(0.001).minimize(loss), loss], {x: X}


def ops_of(path, **kwargs):
    return list(opdump.open(path).executions(**kwargs))


def test_dump_step_says_which_steps_are_dumped() -> None:
    path, _, _ = dumped(network, 8, dump_step="0|2-3|6")
    assert sorted({each.op.step for each in ops_of(path)}) == [0, 2, 3, 6]
    indices = sorted({item.name for item in path.glob("*/0/ge_default_*/*/*") if item.is_dir()})
    assert indices == ["0", "2", "3", "6"], indices


def test_dump_mode_says_whether_inputs_or_outputs_are_dumped() -> None:
    for mode, inputs, outputs in (("input", True, False), ("output", False, True), ("all", True, True)):
        path, _, _ = dumped(network, 1, dump_mode=mode)
        each = next(each for each in ops_of(path) if each.op.op_name == "net/mm")
        assert (bool(each.inputs), bool(each.outputs)) == (inputs, outputs), (mode, each)


def test_dump_layer_says_which_operators_are_dumped() -> None:
    path, (report,), _ = dumped(network, 1, dump_layer="net/mm no/such")
    names = {each.op.op_name for each in ops_of(path)}
    # The placeholder is the input of the selected operator.
    assert names == {"net/mm", "x"}, names
    assert any("no/such" in str(text) for text in report.warnings), report.warnings


def test_statistics_are_tables() -> None:
    path, _, _ = dumped(network, 1, dump_data="stats")
    (table,) = path.glob("**/MatMul.net_mm.*.csv")
    (row,) = csv.DictReader(table.read_text(encoding="utf-8").splitlines())
    value = X @ np.full((8, 1), 0.5, np.float32)
    assert (row["Shape"], row["Count"], row["Data Type"]) == ("4x1", "4", "DT_FLOAT"), row
    for name, figure in {"Max Value": value.max(), "Min Value": value.min(), "Avg Value": value.mean()}.items():
        assert np.isclose(float(row[name]), figure, 1e-5), (name, row)


def test_overflow_detection_keeps_the_operator_that_overflows() -> None:
    def build():
        x = v1.placeholder(tf.float32, [4], name="x")
        return tf.add(tf.exp(x, name="blows"), 1.0, name="after"), {x: [1.0, 2.0, 3.0, 100.0]}

    path, _, _ = dumped(build, 1, enable_dump=False, enable_dump_debug=True)
    files = [item.name for item in path.rglob("*") if item.is_file()]
    assert any("blows" in name for name in files), files
    assert any("OpDebug" in name or "Opdebug" in name for name in files), files
    told = subprocess.run(
        [sys.executable, "-m", "opdump", "overflow", str(path)], capture_output=True, text=True, check=False
    )
    assert "blows" in told.stdout, (told.stdout, told.stderr)


def test_long_and_odd_names_are_kept_in_a_table() -> None:
    scope = "a/very long".replace(" ", "_") + "/" + "n" * 280

    def build():
        x = v1.placeholder(tf.float32, [2], name="x")
        return tf.add(tf.exp(x, name=scope), 1.0, name="dots.and-dashes/op"), {x: [1.0, 2.0]}

    path, _, _ = dumped(build, 1)
    tables = list(path.glob("**/mapping.csv"))
    assert len(tables) == 1, tables
    assert scope.replace("/", "_") in tables[0].read_text(), tables
    names = {each.op.op_name for each in ops_of(path)}
    assert scope in names, names
    assert list(path.glob("**/Add*.dots_and-dashes_op.*")), [item.name for item in path.rglob("Add*")]


def test_directories_have_the_number_of_the_device() -> None:
    path, _, _ = dumped(network, 1, session_device_id=3)
    assert list(path.glob("*/3/ge_default_*"))
    os.environ["ASCEND_DEVICE_ID"] = "5"
    try:
        path, _, _ = dumped(network, 1)
    finally:
        del os.environ["ASCEND_DEVICE_ID"]
    assert list(path.glob("*/5/ge_default_*"))


def test_files_convert_to_the_values() -> None:
    path, _, answers = dumped(network, 1, dump_mode="all")
    (directory,) = [item.parent for item in path.rglob("MatMul.net_mm.*")]
    out = Path(tempfile.mkdtemp())
    told = subprocess.run(
        [sys.executable, "-c", "import sys; from opdump.msaccucmp import main; sys.exit(main())", "convert", "-d", str(directory), "-out", str(out), "-t", "npy"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    converted = list(out.rglob("MatMul.net_mm*output.0*.npy"))
    assert len(converted) == 1, (told.stdout, told.stderr, list(out.rglob("*")))
    (found,) = converted
    assert np.allclose(np.load(found), X @ np.full((8, 1), 0.5, np.float32), 1e-5)
    (loss,) = out.rglob("Sum.loss*output.0*.npy")
    assert same(np.load(loss).reshape(()), answers[0][1])


def _random(build, steps=(1, 3, 4), runs=6):
    def program():
        with tf.Graph().as_default():
            v1.set_random_seed(7)
            fetches = build()
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                return [session.run(fetches) for _ in range(runs)]

    plain = program()
    with recorded(StepSet.of(*steps)) as found:
        captured = program()
    assert same(plain, captured), (plain, captured)
    assert sorted({step for _, step in found.steps()}) == list(steps), found.steps()
    return found


def test_random_operators_give_the_same_numbers() -> None:
    _random(
        lambda: [
            tf.square(tf.random.uniform([4])),
            tf.square(tf.random.normal([4], seed=3)),
            tf.random.truncated_normal([3], seed=1),
            tf.random.shuffle(tf.range(10), seed=2),
            v1.multinomial([[0.1, 0.2, 0.3]], 5, seed=3),
            tf.random.gamma([3], 2.0, seed=4),
            tf.square(v1.nn.dropout(tf.ones([20]), rate=0.5, seed=3)),
            tf.random.stateless_uniform([3], [1, 2]),
        ]
    )


def test_a_random_generator_gives_the_same_numbers() -> None:
    _random(lambda: tf.random.Generator.from_seed(3).normal([3]) + 1)


def test_random_data_sets_give_the_same_numbers() -> None:
    def build():
        data = tf.data.Dataset.range(100).shuffle(50, seed=3).batch(4)
        noise = tf.data.Dataset.range(100).map(lambda _: tf.random.uniform([4], seed=3))
        return [
            tf.square(v1.data.make_one_shot_iterator(data).get_next()),
            tf.square(v1.data.make_one_shot_iterator(noise).get_next()),
        ]

    _random(build)


def test_random_functions_give_the_same_numbers() -> None:
    @tf.function
    def noisy(x):
        for _ in tf.range(3):
            x += tf.random.uniform([4], seed=3)
        return x

    _random(lambda: tf.square(noisy(tf.ones([4]))))
    _random(lambda: tf.square(noisy(tf.ones([4]))), steps=(0, 5))


def test_random_branches_and_loops_give_the_same_numbers() -> None:
    def build():
        chosen = v1.cond(
            tf.random.uniform([], seed=1) > 0.5,
            lambda: tf.random.uniform([4], seed=3),
            lambda: tf.random.normal([4], seed=3),
        )
        loop = v1.while_loop(
            lambda i, a: i < 3, lambda i, a: (i + 1, a + tf.random.uniform([4], seed=3)), [0, tf.zeros([4])]
        )
        return [tf.square(chosen), tf.square(loop[1])]

    _random(build)


def test_random_functional_branches_and_loops_give_the_same_numbers() -> None:
    v1.enable_control_flow_v2()
    try:
        test_random_branches_and_loops_give_the_same_numbers()
    finally:
        v1.disable_control_flow_v2()


def test_random_functions_that_are_not_inlined_give_the_same_numbers() -> None:
    from tensorflow.python.framework import function

    @function.Defun(tf.float32, noinline=True)
    def noisy(x):
        return x + tf.random.uniform([4], seed=3)

    _random(lambda: tf.square(noisy(tf.ones([4]))))


def test_only_the_inputs_of_branches_and_loops_can_be_dumped() -> None:
    with recorded(outputs=False) as found, tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [3], "x")
        taken = v1.cond(
            tf.reduce_sum(x) > 0, lambda: tf.multiply(x, 3.0, name="taken"), lambda: tf.negative(x, name="other")
        )
        turns = v1.while_loop(
            lambda i, _: i < 2, lambda i, a: (i + 1, tf.add(a * 0.5, x, name="body_add")), [0, taken]
        )[1]
        with v1.Session() as session:
            session.run(turns, {x: [1, 2, 3]})
    ran = [each.op.op_name for each in found.executions()]
    assert ran.count("cond/taken") == 1, ran
    assert ran.count("while/body_add") == 2, ran
    assert found.skips()["cond/other"] == "not executed", found.skips()


def test_graphs_that_the_runtime_rewrites_give_the_same_bits() -> None:
    """The runtime rewrites these graphs: fetching intermediate values would change the last bits of the answers."""
    shape = (64, 64)
    weights = np.random.default_rng(0).normal(size=(3, 3, 8, 8)).astype(np.float32)

    def image(a):
        return tf.reshape(a, [1, 64, 8, 8])

    def norm(h):
        return v1.nn.fused_batch_norm(
            h, tf.ones(8) * 1.1, tf.ones(8) * 0.3, tf.ones(8) * 0.1, tf.ones(8) * 0.7, is_training=False
        )[0]

    graphs = {
        "quotient": lambda a, b, c: a / tf.sqrt(tf.abs(b) + 0.1),
        "constants": lambda a, b, c: (a / 3.0) * 7.0 / 1.1,
        "broadcast": lambda a, b, c: (a * 3.1) * (b * 0.7) * 1.3,
        "logarithm": lambda a, b, c: tf.math.log(tf.nn.softmax(a)),
        "gelu": lambda a, b, c: tf.nn.gelu(tf.matmul(a, b) + c[0], approximate=True),
        "scaled convolution": lambda a, b, c: v1.nn.conv2d(image(a) * 0.37, tf.constant(weights), 1, "SAME") * 1.7,
        "normalised convolution": lambda a, b, c: tf.nn.relu(
            norm(v1.nn.conv2d(image(a), tf.constant(weights), 1, "SAME"))
        ),
        "normalised": lambda a, b, c: tf.nn.relu(norm(image(a))),
        "gradient": lambda a, b, c: tf.gradients(tf.nn.gelu(tf.matmul(a, b) / tf.sqrt(tf.abs(c) + 1.0)), [a, b]),
        "powers": lambda a, b, c: tf.pow(a, 2.0) + tf.pow(tf.abs(b), 0.5) + tf.pow(c, 3.0),
        "sums": lambda a, b, c: a * b + a * c + ((a + b) + (c + a)),
    }
    for name, build in graphs.items():

        def program(build=build):
            with tf.Graph().as_default():
                random = np.random.default_rng(1)
                fed = [v1.placeholder(tf.float32, shape, name=key) for key in "abc"]
                fetches = build(*fed)
                with v1.Session() as session:
                    return [session.run(fetches, {each: random.normal(size=shape) for each in fed}) for _ in range(3)]

        plain = program()
        with recorded() as found:
            captured = program()
        assert same(plain, captured), name
        missing = [
            op for op, reason in found.skips().items() if reason not in ("constant", "fed", "handle", "control flow")
        ]
        assert not missing, (name, missing)
        if name == "quotient":
            b = np.abs(np.random.default_rng(1).normal(size=(2, *shape))[1]).astype(np.float32)
            assert np.allclose(found.value("Sqrt"), np.sqrt(b + 0.1), 1e-5)


def test_training_is_the_same_bit_for_bit() -> None:
    for batch, seed, reference in ((1, 0, False), (7, 1, False), (32, 2, False), (128, 3, False), (7, 4, True)):
        plain = _convolutions(batch, seed, reference)
        with recorded(StepSet.of(*range(0, 20, 3)), captures="data"):
            captured = _convolutions(batch, seed, reference)
        assert same(plain, captured), (batch, seed, reference)


def _convolutions(batch, seed, reference):
    """The losses of 20 steps, then the variables: two convolutions, batch norm, dropout, Adam."""
    random = np.random.default_rng(seed)
    with tf.Graph().as_default(), v1.variable_scope("", use_resource=not reference):
        v1.set_random_seed(seed)
        images = v1.placeholder(tf.float32, [None, 12, 12, 1], name="images")
        labels = v1.placeholder(tf.int32, [None], name="labels")
        h = images
        for number, planes in enumerate((8, 16)):
            kernel = v1.get_variable(f"k{number}", [3, 3, h.shape[-1], planes])
            bias = v1.get_variable(f"b{number}", [planes], initializer=v1.zeros_initializer())
            h = tf.nn.relu(tf.nn.bias_add(v1.nn.conv2d(h, kernel, 1, "SAME"), bias))
            h = v1.nn.max_pool2d(h, 2, 2, "SAME")
        scale = v1.get_variable("scale", initializer=np.ones(16, np.float32))
        h = tf.nn.relu(v1.nn.fused_batch_norm(h, scale, np.zeros(16, np.float32))[0])
        h = v1.nn.dropout(tf.reshape(h, [-1, 144]), rate=0.3, seed=5)
        scores = tf.matmul(h, v1.get_variable("w", [144, 10])) / tf.sqrt(10.0)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores))
        train = v1.train.AdamOptimizer(1e-3).minimize(loss)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            feeds = [
                {images: random.normal(size=(batch, 12, 12, 1)), labels: random.integers(0, 10, batch)}
                for _ in range(20)
            ]
            return [session.run([train, loss], feed)[1] for feed in feeds], session.run(v1.global_variables())


def test_no_update_runs_twice() -> None:
    """Recomputation after a run must not change state."""

    def program():
        with tf.Graph().as_default():
            count = v1.get_variable("count", initializer=np.float32(0), use_resource=True)
            x = v1.placeholder(tf.float32, [64, 64], name="x")
            with tf.control_dependencies([count.assign_add(1.0)]):
                y = tf.abs(x) + 0.1
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                answers = [
                    session.run(x / tf.sqrt(y) if not number else "truediv:0", {x: np.ones((64, 64))})
                    for number in range(3)
                ]
                return answers, session.run(count)

    plain = program()
    with recorded():
        captured = program()
    assert same(plain, captured), captured[1]
    assert captured[1] == 3.0, captured[1]


def path_error_of(act):
    """The message of the error if `act` cannot write; empty otherwise."""
    try:
        act()
    except DumpPathError as error:
        return str(error)
    return ""


def put_in_place_of(directory):
    """Replace the directory by a file. Writers that are still at work may create files in it in the meantime."""
    while not directory.is_file():
        shutil.rmtree(directory, ignore_errors=True)
        with suppress(IsADirectoryError):
            directory.write_text("in the way")


def test_a_directory_that_disappears_is_reported() -> None:
    """With "stop", the next call raises; otherwise the program continues with the same answers, and the report names the loss."""
    for on_error in ("stop", None):
        path = Path(tempfile.mkdtemp(prefix="opdump-test-"))
        opdump.tensorflow.install(on_error=on_error)
        reports: list[Any] = []
        with tf.Graph().as_default():
            fetches, feed = network()
            session = v1.Session(config=config_of(path))
            session.run(v1.global_variables_initializer())
            session.run(fetches, feed)
            put_in_place_of(path)
            acts = (
                lambda session=session, fetches=fetches, feed=feed: session.run(fetches, feed),
                session.close,
                lambda reports=reports: reports.extend(opdump.tensorflow.finish()),
            )
            told = [path_error_of(act) for act in acts]
        told = [text for text in told if text]
        if on_error == "stop":
            assert told, told
            assert all(str(path) in text for text in told), told
        else:
            assert not told, told
            assert [str(path) in report.failure for report in reports] == [True], reports


def test_nothing_is_fetched_for_a_dump_that_is_lost() -> None:
    for streams in (False, True):
        with tf.Graph().as_default(), pytest.MonkeyPatch.context() as patch:
            fetched: list[int] = []
            original = session_module.BaseSession._do_run

            def listening(session, handle, targets, fetches, *rest, original=original, fetched=fetched):
                fetched.append(len(targets) + len(fetches))
                return original(session, handle, targets, fetches, *rest)

            patch.setattr(session_module.BaseSession, "_do_run", listening)
            fetches, feed = network()
            with recorded(streams=streams) as found, v1.Session() as session:
                session.run(v1.global_variables_initializer())
                fetched.clear()
                session.run(fetches, feed)
                assert streams or max(fetched) > 3, fetched  # otherwise all tensors are watched
                recorder = found.capture.recorder
                recorder._failed(OSError("no space left"))
                fetched.clear()
                told: list[Any] = []
                patch.setattr(recorder, "before_op", lambda op, inputs, told=told: told.append(op) or op)
                for _ in range(3):
                    session.run(fetches, feed)
                # Without a dump, the run also needs no reader.
                assert told == [], (fetched, told)
                assert len(set(fetched)) == 1, (fetched, told)
                assert fetched[0] <= 3, (fetched, told)
