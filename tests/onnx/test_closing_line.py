"""The closing line of a run of an ONNX model matches the files on disk, in each layout and mode."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import opdump
import opdump.onnx
from opdump.reports.completeness import completeness_json
from tests.cli.json_shapes import mistakes
from tests.torch.test_closing_line import MODES, on_disk

pytestmark = pytest.mark.torch  # the modes come from its tests


def _run(root: Path, mode: str) -> opdump.CaptureReport:
    """Run a model in which Exp of large values overflows, and a loop has a body."""
    real, integer, truth = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["before", "before"], ["after"], "square"),
            helper.make_node("Identity", ["go"], ["on"], "on"),
        ],
        "body",
        [
            helper.make_tensor_value_info("number", integer, ()),
            helper.make_tensor_value_info("go", truth, ()),
            helper.make_tensor_value_info("before", real, (3,)),
        ],
        [helper.make_tensor_value_info("on", truth, ()), helper.make_tensor_value_info("after", real, (3,))],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["a"], "relu"),
            helper.make_node("Loop", ["times", "", "a"], ["b"], "loop", body=body),
            helper.make_node("Exp", ["b"], ["y"], "exp"),
        ],
        "Net",
        [helper.make_tensor_value_info("x", real, (3,))],
        [helper.make_tensor_value_info("y", real, (3,))],
        [helper.make_tensor("times", integer, (), [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with opdump.onnx.session(model, opdump.DumpPlan(path=root, **MODES[mode])) as session:
        for number in range(3):
            session.run(None, {"x": np.array([1, 5, number], np.float32)})
    assert session.report is not None
    return session.report


@pytest.mark.parametrize("mode", MODES)
def test_files_and_bytes_are_those_on_disk(mode: str, tmp_path: Path) -> None:
    report, files = _run(tmp_path, mode), on_disk(tmp_path)
    assert report.files == len(files) > 0, sorted(path.name for path in files)
    assert report.bytes == sum(size for _, size in files.values())
    assert mistakes("run", json.loads(completeness_json(report))) == []


@pytest.mark.parametrize("mode", MODES)
def test_a_second_run_counts_what_it_wrote_as_it_lies_there(mode: str, tmp_path: Path) -> None:
    _run(tmp_path, mode)
    before = on_disk(tmp_path)
    report = _run(tmp_path, mode)
    written = {path: facts for path, facts in on_disk(tmp_path).items() if before.get(path) != facts}
    assert report.files == len(written), sorted(path.name for path in written)
    assert report.bytes == sum(size for _, size in written.values())


@pytest.mark.parametrize("names", [None, ["missing"]])
def test_runs_that_failed_are_the_reason_why_nothing_was_captured(tmp_path: Path, names: list[str] | None) -> None:
    relu = helper.make_node("Relu", ["x"], ["y"], "relu")
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (3,)) for name in "xy"]
    model = helper.make_model(
        helper.make_graph([relu], "Net", values[:1], values[1:]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    with opdump.onnx.session(model, path=str(tmp_path)) as session:
        shape = (2,) if names is None else (3,)
        with pytest.raises(Exception, match="INVALID_ARGUMENT"):
            session.run(names, {"x": np.ones(shape, np.float32)})
    assert session.report is not None
    assert session.report.nothing is not None
    assert session.report.nothing.reason == "no run of a model reached its end"
