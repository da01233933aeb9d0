"""ONNX models from other tools: the answer is that of ONNX Runtime.

In models that users of scikit-learn and LightGBM convert, only strings and maps are opaque; Python code that onnxruntime-extensions puts into a
model runs as often as without a dump. A program that runs networks of torchvision and transformers is recorded whole by `opdump run`.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import opdump
from tests.parity import peers


def test_converted_models_are_recorded_whole_and_answer_as_before() -> None:
    out = peers.run(peers.PROGRAMS, [peers.SCRIPTS / "onnx_models.py"], {"PYTHONPATH": str(peers.ROOT)})
    told = json.loads(out.splitlines()[-1])
    print(f"{len(told)} runs of converted models")
    assert len(told) == 30
    for name, figures in told.items():
        assert figures["same"], name
        assert figures["captured"] > 0, name
        assert figures["opaque"] == [], (name, figures)
        assert figures["notes"] == [], (name, figures)


@pytest.fixture(scope="module")
def with_python() -> dict[str, Any]:
    script = peers.SCRIPTS / "onnx_python_operators.py"
    out = peers.run(peers.PROGRAMS, [script], {"PYTHONPATH": str(peers.ROOT)})
    told: dict[str, Any] = json.loads(out.splitlines()[-1])
    return told


def test_python_in_a_model_runs_as_often_as_without_a_dump_and_the_answer_is_the_same(
    with_python: dict[str, Any],
) -> None:
    assert len(with_python) == 18
    print(f"{len(with_python)} models with Python of the program")
    for name, found in with_python.items():
        without, recorded = found["asked"]
        assert without >= 3, name
        assert (recorded, found["same"]) == (without, True), (name, found)


def test_operators_around_python_are_dumped_with_what_it_gave(with_python: dict[str, Any]) -> None:
    for name, found in with_python.items():
        if "failure" in name:
            continue
        if name == "in a function, optimised":
            assert not found["captured"]
            assert "record it at level 'disable'" in found["notes"][0]
            continue
        assert found["captured"], name
        assert found["fits"], name
        assert any("ai.onnx.contrib::Ask of the program" in note for note in found["notes"]), name


def test_a_program_with_exported_networks_is_recorded_whole_by_opdump_run(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    peers.run(peers.PROGRAMS, [peers.SCRIPTS / "export_onnx_models.py", folder], {"PYTHONPATH": str(peers.ROOT)})
    program = peers.SCRIPTS / "onnx_program.py"
    peers.run(peers.PROGRAMS, [program, folder, tmp_path / "plain"], {})
    recorded: list[str | Path] = ["-m", "opdump", "run", "--full", "--json", "--path", tmp_path / "dump"]
    done = peers.completed(peers.PROGRAMS, [*recorded, program, folder, tmp_path / "recorded"], {})
    assert (tmp_path / "recorded").read_bytes() == (tmp_path / "plain").read_bytes()
    report = json.loads(done.stderr.splitlines()[-1])
    assert (report["skipped"], report["tensors_skipped"], report["warnings"]) == ({}, {}, [])
    counts = Counter(execution.op.step for execution in opdump.open(tmp_path / "dump").executions())
    print(f"{counts.total()} operators of {len(counts)} networks")
    assert len(counts) == 20
    assert counts.total() == report["captured"]
    assert min(counts.values()) >= 20
