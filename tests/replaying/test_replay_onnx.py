"""Replay operators that ONNX Runtime ran from their dump."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.backend.test.case.node import collect_testcases

import opdump
import opdump.onnx
from opdump.adapters.onnxruntime.model_graph import nodes_of
from opdump.adapters.onnxruntime.replay import REPLAYER
from opdump.errors import CannotReplayError
from opdump.records import OpRecord, SupportsFile, TensorRecord

Array = NDArray[Any]
_NARROW = 2
_EVERY = 7


def model(*nodes: onnx.NodeProto, opset: int = 17, **inputs: Array) -> bytes:
    """A model of these nodes; its output is `y`."""
    types = {name: helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in inputs.items()}
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(name, types[name], value.shape) for name, value in inputs.items()],
        [helper.make_empty_tensor_value_info("y")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    content: bytes = made.SerializeToString()
    return content


def dumped(path: Path, *nodes: onnx.NodeProto, opset: int = 17, **inputs: Array) -> Path:
    with opdump.onnx.session(model(*nodes, opset=opset, **inputs), path=str(path), saved_data="full") as session:
        session.run(None, inputs)
    return path


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = np.random.default_rng(0)
    return dumped(
        tmp_path_factory.mktemp("onnx"),
        helper.make_node("Conv", ["x", "w"], ["a"], name="convolution", pads=[1, 1, 1, 1]),
        helper.make_node("Gelu", ["a"], ["b"], name="gelu", approximate="tanh"),
        helper.make_node("Cast", ["b"], ["c"], name="narrow", to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["c"], ["d"], name="wide", to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["d", "axes"], ["e"], name="mean", keepdims=0),
        helper.make_node("Softmax", ["e"], ["f"], name="softmax", axis=-1),
        helper.make_node("Softmax", ["d"], ["g"], name="softmax_over_channels", axis=1),
        helper.make_node("ReduceSum", ["g"], ["h"], name="sum", keepdims=0),
        helper.make_node("Add", ["f", "h"], ["i"], name="add"),
        helper.make_node("FastGelu", ["i"], ["j"], name="fast_gelu", domain="com.microsoft"),
        helper.make_node("FusedMatMul", ["j", "j"], ["y"], name="matmul", domain="com.microsoft", transB=1, alpha=0.5),
        opset=20,
        x=draw.standard_normal((2, 3, 6, 6), np.float32),
        w=draw.standard_normal((4, 3, 3, 3), np.float32),
        axes=np.array([2, 3]),
    )


@pytest.mark.parametrize("name", ["convolution", "gelu", "narrow", "mean", "softmax", "add", "fast_gelu", "matmul"])
def test_operator_gives_what_it_gave(dump: Path, name: str) -> None:
    result = opdump.replay(dump, name)
    (output,) = result.outputs
    assert output.agrees
    assert [distance.dtype for distance in output.distances] == ["recorded", "float64"]
    assert output.distances[0].ulps is not None
    assert output.distances[0].ulps <= 1


def test_all_parts_of_a_split_run_again(tmp_path: Path) -> None:
    path = dumped(
        tmp_path,
        helper.make_node("Split", ["x", "sizes"], ["a", "b", "c"], name="by_sizes", axis=0),
        helper.make_node("Split", ["b"], ["d", "e"], name="in_halves", axis=0),
        helper.make_node("Concat", ["a", "d", "e", "c"], ["y"], name="joined", axis=0),
        x=np.arange(14, dtype=np.float32).reshape(7, 2),
        sizes=np.array([1, 4, 2]),
    )
    for name, parts in (("by_sizes", 3), ("in_halves", 2)):
        outputs = opdump.replay(path, name).outputs
        assert [output.agrees for output in outputs] == [True] * parts


def test_operators_of_an_optimised_model_run_again(tmp_path: Path) -> None:
    x, w = np.random.default_rng(0).standard_normal((2, 4, 4)).astype(np.float32)
    content = model(
        helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
        helper.make_node("Add", ["m", "b"], ["s"], name="shift"),
        helper.make_node("Transpose", ["s"], ["t"], name="turned", perm=[1, 0]),
        helper.make_node("MatMul", ["t", "s"], ["y"], name="second"),
        x=x,
        w=w,
        b=x[0],
    )
    with opdump.onnx.session(content, path=str(tmp_path), saved_data="full", optimize="all") as session:
        session.run(None, {"x": x, "w": w, "b": x[0]})
    runs = list(opdump.open(tmp_path).ops())
    assert any("stands_for" in run.op.arguments for run in runs)
    for run in runs:
        assert all(output.agrees for output in opdump.replay(tmp_path, run.op.op_name).outputs), run.op.kernel


def test_an_optional_output_of_the_runtimes_own_operator_runs_again(tmp_path: Path) -> None:
    path = dumped(
        tmp_path,
        helper.make_node(
            "SkipLayerNormalization", ["x", "z", "g"], ["n", "", "", "s"], name="norm", domain="com.microsoft"
        ),
        helper.make_node("Add", ["n", "s"], ["y"], name="sum"),
        x=np.arange(8, dtype=np.float32).reshape(1, 2, 4),
        z=np.ones((1, 2, 4), np.float32),
        g=np.ones(4, np.float32),
    )
    outputs = opdump.replay(path, "norm").outputs
    assert [output.agrees for output in outputs] == [True, True]


def test_a_whole_name_means_the_one_operator_that_has_it(dump: Path) -> None:
    assert opdump.replay(dump, "softmax").op.op_name == "softmax"


def test_a_version_that_the_dump_does_not_have_is_reported(dump: Path) -> None:
    with pytest.raises(CannotReplayError, match="has another meaning before version 13"):
        opdump.replay(dump, "softmax_over_channels")


def test_changed_output_differs(tmp_path: Path) -> None:
    changed = dumped(tmp_path, helper.make_node("Exp", ["x"], ["y"], name="exp"), x=np.ones((2, 3), np.float32))
    (record,) = next(opdump.open(changed).ops("exp")).outputs.values()
    payload: object = record.payload
    assert isinstance(payload, SupportsFile)
    elements = np.load(payload.file)
    elements[1, 2] += 1e-3
    np.save(payload.file, elements)
    assert opdump.replay(changed, "exp").verdict == "differs"


def test_written_program_needs_no_opdump(dump: Path, tmp_path: Path) -> None:
    for name in ("convolution", "matmul"):
        opdump.replay(dump, name, emit=tmp_path / "repro.py")
        assert len((tmp_path / "repro.py").read_text().splitlines()) <= 32
        program = "import sys; sys.modules['opdump'] = None; import runpy; runpy.run_path('repro.py')"
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": ""},
            capture_output=True,
            text=True,
            check=True,
        )
        recorded, now = done.stdout.splitlines()
        assert (recorded.partition(":")[0], now.partition(":")[0]) == ("y0 recorded, float32", "y0 now, float32")
        assert recorded.partition(":")[2] == now.partition(":")[2]


def test_operators_that_draw_random_numbers_are_reported(tmp_path: Path) -> None:
    path = dumped(tmp_path, helper.make_node("Bernoulli", ["x"], ["y"], name="draw"), x=np.full((3,), 0.5, np.float32))
    with pytest.raises(CannotReplayError, match="draws random numbers"):
        opdump.replay(path, "draw")


def conformance() -> Iterator[tuple[str, OpRecord, dict[int, TensorRecord], dict[int, Array], dict[int, Array]]]:
    """A sample of ONNX's conformance cases: the operator, its inputs, and its outputs by slot."""
    with np.errstate(all="ignore"):
        cases = collect_testcases(None)
    for case in cases[::_EVERY]:
        if case.model is None or not case.data_sets or len(case.model.graph.node) != 1:
            continue
        given, expected = case.data_sets[0]
        # Sequences are lists, and types that numpy lacks have their own kind.
        if not {getattr(each, "dtype", np.dtype(object)).kind for each in (*given, *expected)} <= set("fiub"):
            continue
        (node,) = nodes_of(case.model)
        operator = node.operator
        op = OpRecord(operator.op_type, operator.op_name, 1, arguments=operator.arguments, kernel=operator.kernel)
        fed = dict(zip((value.name for value in case.model.graph.input), given, strict=True))
        outputs = dict(zip((value.name for value in case.model.graph.output), expected, strict=True))
        values = {slot: fed[name] for slot, name in enumerate(node.inputs) if name}
        records = {
            slot: TensorRecord(op, "input", slot, value.dtype.name, value.shape, argument=node.input_arguments[slot])
            for slot, value in values.items()
        }
        yield case.name, op, records, values, {slot: outputs[name] for slot, name in enumerate(node.outputs) if name}


def near(found: Mapping[int, Array], expected: Mapping[int, Array]) -> bool:
    return all(
        slot in found
        and found[slot].shape == each.shape
        and np.allclose(
            found[slot].astype(np.float64),
            each.astype(np.float64),
            rtol=1e-3,
            atol=1e-3 if each.dtype.itemsize == _NARROW else 1e-5,
            equal_nan=True,
        )
        for slot, each in expected.items()
    )


def test_operators_are_those_of_the_conformance_cases_of_onnx() -> None:
    wrong, done = set(), 0
    for name, op, inputs, values, expected in conformance():
        try:
            found = REPLAYER.run(op, inputs, values)
        except CannotReplayError:
            continue
        done += 1
        if not near(found.outputs, expected):
            wrong.add(name)
    # A fully masked row has another result in ONNX Runtime's attention.
    assert {name for name in wrong if not name.startswith("test_attention")} == set()
    assert done > 100
