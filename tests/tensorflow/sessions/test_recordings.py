"""Programs that request dumps: streamed tensors, failing operators, directories."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

import opdump
import opdump.tensorflow

v1 = tf.compat.v1


def config(**parameters: Any) -> Any:
    """A session config with an entry for NpuOptimizer."""
    made = v1.ConfigProto()
    entry = made.graph_options.rewrite_options.custom_optimizers.add()
    entry.name = "NpuOptimizer"
    for key, value in parameters.items():
        field = "b" if isinstance(value, bool) else "i" if isinstance(value, int) else "s"
        setattr(entry.parameter_map[key], field, value.encode() if isinstance(value, str) else value)
    return made


def folder() -> Path:
    """A new directory. Graph files also go there."""
    made = Path(tempfile.mkdtemp(prefix="opdump-test-"))
    os.chdir(made)
    return made


def network() -> tuple[Any, Any]:
    """A network with a reference variable, a branch and a loop: its loss, and its training operator."""
    v1.disable_resource_variables()
    v1.disable_control_flow_v2()
    v1.set_random_seed(7)
    x = tf.constant(np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32))
    kernel = v1.get_variable("kernel", [8, 8], initializer=v1.random_normal_initializer(stddev=0.3))
    net = tf.matmul(x, kernel)
    net = v1.cond(tf.reduce_sum(net) > 0, lambda: net * 2.0, lambda: tf.tanh(net))
    _, net = v1.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, tf.sin(a) * 1.5), [0, net])
    net += tf.random.normal([16, 8])  # from a sequence that continues from step to step
    loss = tf.reduce_mean(tf.square(net))
    return loss, v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)


def train(made: Any, *, streams: bool, final: bool) -> list[float]:
    opdump.tensorflow.install(streams=streams)
    with tf.Graph().as_default() as graph:
        loss, update = network()
        init = v1.global_variables_initializer()
        if final:
            graph.finalize()
        with v1.Session(config=made) as session:
            session.run(init)
            losses = [float(session.run([update, loss])[1]) for _ in range(4)]
        assert graph.finalized == final
    return losses


def values(dump: Path) -> dict[str, Any]:
    """The values of every tensor, by step, operator, occurrence and slot."""
    return {
        f"{tensor.op.step} {tensor.op.op_name} {tensor.op.occurrence} {tensor.io} {tensor.slot}": tensor.payload.to_host()
        for tensor in opdump.open(dump)
        if tensor.payload is not None
    }


def streams() -> dict[str, Any]:
    """Tensors that are streamed one by one and tensors that are fetched at the end of a run: the same tensors and losses, also in a finalised graph."""
    plain = train(v1.ConfigProto(), streams=False, final=False)
    found = {}
    for name, streamed, final in (("whole", False, True), ("streamed", True, True), ("open", True, False)):
        out = folder()
        made = config(enable_dump=True, dump_path=str(out), dump_mode="all", dump_step="1|3")
        assert train(made, streams=streamed, final=final) == plain, name
        opdump.tensorflow.finish()
        found[name] = values(out)
    whole = found["whole"]
    differing = [
        key
        for name in ("streamed", "open")
        for key in whole
        if key not in found[name] or not np.array_equal(found[name][key], whole[key], equal_nan=True)
    ]
    loops = sum(key.startswith("1 while/Sin ") and " output " in key for key in whole)
    return {
        "tensors": len(whole),
        "sizes": [len(each) for each in found.values()],
        "differing": differing,
        "loops": loops,
    }


def attempt(run: Callable[[], object]) -> str:
    """The class of the error that a run raises; empty if it succeeds."""
    try:
        run()
    except (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError) as error:
        return type(error).__name__
    return ""


@cache
def failures(level: int) -> dict[str, Any]:
    """The logarithm of a negative number, found by a check in the program; the iterator continues after the failure."""
    out = folder()
    opdump.tensorflow.install()
    results: list[Any] = []
    with tf.Graph().as_default():
        data = tf.data.Dataset.from_tensor_slices(np.arange(9, dtype=np.float32).reshape(3, 3))
        batch = v1.data.make_one_shot_iterator(data).get_next()
        scale = v1.get_variable("scale", [3], initializer=v1.ones_initializer(), use_resource=True)
        checked = tf.debugging.check_numerics(tf.math.log(batch - 4.0) * scale, "bad", name="check")
        update = v1.assign_add(scale, checked)
        with v1.Session(config=config(enable_exception_dump=level)) as session:
            session.run(v1.global_variables_initializer())
            said = [attempt(lambda: results.append(session.run(update).tolist())) for _ in range(4)]
    opdump.tensorflow.finish()
    files = sorted((out / "extra-info" / "data-dump" / "0").glob("*2*"))
    inputs = [opdump.read_dump_file(file).inputs for file in files]
    return {
        "said": said,
        "results": results,
        "files": [file.name for file in files],
        "inputs": [[str(tensor.to_host().tolist()) for tensor in each] for each in inputs],
        "messages": ["bad" in opdump.read_dump_file(file).dfx_message for file in files],
        "leftover": sorted(path.name for path in out.iterdir()),
    }


def failures_of_callables() -> dict[str, Any]:
    """A check that fails after fed tensors, in a run of each kind."""
    out = folder()
    opdump.tensorflow.install()
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [2], "x")
        checked = tf.debugging.check_numerics(tf.math.log(x), "bad", name="check")
        options = config_pb2.CallableOptions(feed=[x.name], fetch=[checked.name])
        with v1.Session(graph=graph, config=config(enable_exception_dump=1)) as session:
            runs = (
                lambda value: session.run(checked, {x: value}),
                session.make_callable(checked, [x]),
                lambda value: session._make_callable_from_options(options)(np.asarray(value, np.float32))[0],
            )
            said = [(attempt(partial(run, [-1.0, 1.0])), run([1.0, 1.0]).tolist()) for run in runs]
    opdump.tensorflow.finish()
    files = sorted((out / "extra-info" / "data-dump" / "0").glob("*2*"))
    inputs = [str(opdump.read_dump_file(file).inputs[0].to_host().tolist()) for file in files]
    return {"said": said, "inputs": inputs}


def failures_of_data_sets() -> dict[str, Any]:
    """A data set function that fails, in a thread of the runtime."""
    out = folder()
    opdump.tensorflow.install()
    with tf.Graph().as_default() as graph:
        data = tf.data.Dataset.range(4).map(lambda number: tf.gather(tf.constant([1.0, 2.0]), number))
        doubled = v1.data.make_one_shot_iterator(data).get_next() * 2.0
        with v1.Session(graph=graph, config=config(enable_exception_dump=2)) as session:
            said = [attempt(lambda: session.run(doubled)) for _ in range(3)]
    opdump.tensorflow.finish()
    files = [opdump.read_dump_file(file) for file in sorted((out / "extra-info" / "data-dump" / "0").glob("[!.]*"))]
    return {"said": said, "messages": [file.dfx_message for file in files]}


def directories() -> dict[str, Any]:
    """Where files and graph files go for a device number, and what a session after the end writes."""
    out = folder()
    os.environ["DEVICE_ID"], os.environ["DUMP_GRAPH_PATH"] = "5", str(out / "graphs")
    try:
        opdump.tensorflow.install()
        opdump.tensorflow.install(stream_in_names=True)
        made = config(enable_dump=True, dump_path=str(out))
        with tf.Graph().as_default():
            total = tf.add(1.0, 2.0, name="scope/a.b")
            with v1.Session(config=made) as session:
                assert session.run(total) == 3.0
            before = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
            reports = opdump.tensorflow.finish()
            with v1.Session(config=made) as session:  # the capture has ended
                assert session.run(total) == 3.0
        assert sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()) == before
    finally:
        del os.environ["DEVICE_ID"], os.environ["DUMP_GRAPH_PATH"]
    return {"files": before, "steps": [list(report.steps) for report in reports], "pid": os.getpid()}


def overflow() -> dict[str, Any]:
    """Overflow detection keeps the operator that overflows, and no other."""
    out = folder()
    opdump.tensorflow.install()
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float16, [2])
        product = tf.multiply(x, x, name="square") * 1
        with v1.Session(config=config(enable_dump_debug=True, dump_path=str(out))) as session:
            session.run(product, {x: [2.0, 3.0]})
            session.run(product, {x: [300.0, 3.0]})
    opdump.tensorflow.finish()
    return {
        "operators": [[op.op_name, op.step] for op in opdump.open(out).ops() if op.op_type != "Opdebug"],
        "has_file": bool(list(out.rglob("*OpDebug*"))),
    }


def test_streamed_tensors_are_those_of_a_run_that_is_fetched_whole() -> None:
    case = streams()
    assert case["tensors"] > 100
    assert len(set(case["sizes"])) == 1
    assert case["differing"] == []
    assert case["loops"] == 3, "a loop leaves each of its iterations"


def test_a_failing_operator_leaves_its_inputs_whole() -> None:
    case = failures(1)
    assert [re.sub(r"\d{17}", "T", name) for name in case["files"]] == ["CheckNumerics.check.8.T"] * 2
    assert case["inputs"] == [["[nan, nan, nan]"], ["[nan, -inf, 0.0]"]], "as the iterator gave them in that run"
    assert case["messages"] == [True, True]


def test_a_failing_operator_leaves_what_is_known_of_it() -> None:
    case = failures(2)
    assert [re.sub(r"\d{17}", "T", name) for name in case["files"]] == ["exception_info.0.8.T"] * 2
    assert case["inputs"] == [[], []]
    assert case["messages"] == [True, True]


def test_a_failing_callable_leaves_what_the_operator_read() -> None:
    case = failures_of_callables()
    assert case["said"] == [("InvalidArgumentError", [0.0, 0.0])] * 3
    assert case["inputs"] == ["[nan, 0.0]"] * 3


def test_the_dump_of_failures_can_be_switched_off() -> None:
    assert failures(0)["leftover"] == []


@pytest.mark.parametrize("level", [1, 2])
def test_a_dump_of_a_failure_changes_nothing(level: int) -> None:
    plain, dumped = failures(0), failures(level)
    assert plain["said"] == ["InvalidArgumentError", "InvalidArgumentError", "", "OutOfRangeError"]
    assert (dumped["said"], dumped["results"]) == (plain["said"], plain["results"])
    assert dumped["leftover"] == ["extra-info"], (
        "the end of the data is no failure, and directories are made by failures alone"
    )


def test_files_go_where_the_environment_says() -> None:
    case = directories()
    graphs = f"graphs/pid_{case['pid']}_deviceid_5"
    names = [re.sub(r"\d{14}", "T", re.sub(r"\d{16}", "S", name)) for name in case["files"]]
    names = [re.sub(r"T_\d+/\d+/", "T_n/n/", re.sub(r"proto_\d{5}", "proto_n", name)) for name in names]
    assert names == [
        "T/5/.dump_metadata/ge_graphs.json",
        "T/5/.dump_metadata/index.sqlite",
        "T/5/ge_default_T_n/n/0/AddV2.scope_a_b.2.0.S",
        f"{graphs}/ge_proto_n_Build.txt",
        f"{graphs}/ge_proto_n_Build.txt.json",
    ]
    assert case["steps"] == [[0]]


def test_overflow_detection_keeps_the_operator_that_overflows() -> None:
    found = overflow()
    assert found["operators"] == [["square", 1]]
    assert found["has_file"]


def test_a_failure_in_a_data_set_function_is_attributed_to_the_operator_that_requested_the_element() -> None:
    case = failures_of_data_sets()
    assert case["said"] == ["", "", "InvalidArgumentError"]
    (message,) = case["messages"]
    assert "IteratorGetNext" in message
    assert "GatherV2" in message
