"""Recordings of ONNX models that are killed, or whose graph cannot be written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import ModelProto, helper

import opdump
from opdump.adapters.onnxruntime.recorded_model import NodeEmitter
from opdump.commands import main
from opdump.errors import DumpPathError
from opdump.onnx.recording import ModelRecording
from opdump.plan import DumpPlan
from tests.onnx.recording import FLOAT, model_of, plain_run

LAYOUTS: dict[str, dict[str, Any]] = {
    "sync": {"layout": "mindspore-2.3", "saved_data": "full"},
    "async": {"layout": "mindspore-async", "file_format": "bin"},
    "acl": {"layout": "acl", "file_format": "bin", "dialect": "acl"},
}
FEEDS = {"x": np.linspace(-1, 1, 4, dtype=np.float32)}
STEPS = 3


def model() -> ModelProto:
    nodes = [helper.make_node("Abs", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["b"])]
    nodes.append(helper.make_node("Exp", ["b"], ["y"]))
    return model_of(nodes, {"x": (FLOAT, [4])}, {"y": (FLOAT, [4])})


def record(root: Path, layout: str) -> None:
    """Run the model in each step of a recording."""
    recording = ModelRecording(DumpPlan(path=root, **LAYOUTS[layout]))
    recording.load(model(), 1)
    for _ in range(STEPS):
        recording.run(1, None, FEEDS)
    recording.close()


PROGRAM = """
import itertools, os, signal, sys
from pathlib import Path
from tests.onnx.test_faults_of_a_recording import record

root, layout, points = Path(sys.argv[1]), sys.argv[2], [int(text) for text in sys.argv[3:]]
for point in points:
    child = os.fork()
    if child == 0:
        replace, numbers = os.replace, itertools.count(1)

        def counting(*args, **kwargs):
            replace(*args, **kwargs)
            if next(numbers) == point:
                os.kill(os.getpid(), signal.SIGKILL)

        os.replace = counting
        record(root / str(point), layout)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_killed_recording_did_not_finish_is_left_out_or_told(tmp_path: Path, layout: str) -> None:
    record(tmp_path / "whole", layout)
    whole = opdump.open(tmp_path / "whole")
    points = (4, 7, 9)
    subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), layout, *map(str, points)],
        check=True,
        cwd=Path(__file__).parents[2],
        timeout=900,
    )
    killed = 0
    for point in points:
        root = tmp_path / str(point)
        catalog = opdump.open(root)
        if all(run.complete for run in catalog.runs) and catalog.steps == whole.steps:
            continue
        killed += 1
        assert not any(run.complete for run in catalog.runs)
        for step in catalog.steps:
            names = [op.op_name for op in catalog.ops(step=step)]
            if names != [op.op_name for op in whole.ops(step=step)]:
                assert any(f"step {step} was not finished" in str(problem) for problem in catalog.problems)
            for tensor in catalog.tensors(step=step):
                assert tensor.payload is None or tensor.payload.to_host().shape == tensor.shape
        shown = CliRunner().invoke(main, ["show", str(root)], catch_exceptions=False)
        assert "interrupted" in shown.output
        record(root, layout)
        assert not list(root.rglob("*.part"))
        assert any(run.complete for run in opdump.open(root, run="all").runs)
    assert killed


def _with_a_directory_in_place_of_the_graph(root: Path, on_error: Any) -> ModelRecording:
    recording = ModelRecording(DumpPlan(path=root, on_error=on_error, **LAYOUTS["acl"]))
    place: Any = recording.writer
    (root / place.time / "ge_proto_00001_Build.txt").mkdir(parents=True)
    recording.load(model(), 1)
    return recording


def test_a_graph_that_cannot_be_written_ends_the_dump_and_no_program(tmp_path: Path) -> None:
    recording = _with_a_directory_in_place_of_the_graph(tmp_path, "continue")
    for _ in range(STEPS):
        np.testing.assert_array_equal(
            recording.run(1, None, FEEDS)[0], plain_run(model().SerializeToString(), FEEDS)[0]
        )
    report = recording.close()
    assert "ge_proto_00001_Build.txt: cannot be written" in report.failure
    assert not any(run.complete for run in opdump.open(tmp_path).runs)
    assert not list(tmp_path.rglob("*.part"))


def test_with_stop_a_graph_that_cannot_be_written_is_raised(tmp_path: Path) -> None:
    recording = _with_a_directory_in_place_of_the_graph(tmp_path, "stop")
    with pytest.raises(DumpPathError, match=r"ge_proto_00001_Build\.txt: cannot be written"):
        recording.run(1, None, FEEDS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_defect_in_reading_one_node_loses_that_node_and_not_the_dump(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = NodeEmitter.live

    def live(emitter: NodeEmitter, slots: Any, tensors: Any) -> Any:
        assert all(value != "b" for _, _, value, _ in slots), "literal"
        return real(emitter, slots, tensors)

    monkeypatch.setattr(NodeEmitter, "live", live)
    recording = ModelRecording(DumpPlan(path=tmp_path, **LAYOUTS[layout]))
    recording.load(model(), 1)
    answers = [recording.run(1, None, FEEDS) for _ in range(STEPS)]
    report = recording.close()
    np.testing.assert_allclose(answers[-1][0], np.exp(-np.abs(FEEDS["x"])), rtol=1e-6)
    assert not report.failure
    assert report.steps == (0, 1, 2)
    assert report.skipped["not observed"] == 2 * STEPS
    assert {record.op.op_type for record in opdump.open(tmp_path).tensors(step=2)} == {"Abs"}
    (told,) = [text for text in report.warnings if "defect" in text]
    assert "AssertionError: literal" in told
