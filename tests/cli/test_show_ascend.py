"""`opdump show` on dumps of Ascend devices."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.programs import opdump
from tests.layouts.ascend_dumps import STAMP, TIME, add_dump_file, tensor


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """Two steps of a model on one device, with an overflow, and a single operator on another."""
    root = tmp_path / "dump"
    for step in range(2):
        place = root / TIME / "0" / "resnet50" / "11" / str(step)
        add_dump_file(
            place,
            f"Conv2D.net_conv1.1.5.{STAMP + 10 * step}",
            "net/conv1",
            inputs=(tensor("input", 0, np.ones((1, 1, 2, 2, 16), "float16"), layout="NC1HWC0"),),
            outputs=(tensor("output", 0, np.array([1, np.inf, 3], "float32")),),
        )
        add_dump_file(place, f"Opdebug.Node_OpDebug.59.5.{STAMP + 10 * step + 1}", "Node_OpDebug")
    add_dump_file(root / TIME / "1", f"net_fc.MatMulV2.3.5.{STAMP}", "net/fc")
    return root


def test_it_prints_runs_steps_and_operators(dump: Path) -> None:
    shown = opdump("show", str(dump), cwd=dump)
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["rank", "run", "started", "framework"] in lines
    assert ["0", "1", "2024-11-20", "12:00:00", "Ascend"] in lines
    assert ["rank", "step", "graphs", "operators", "tensors"] in lines
    assert ["0", "1", "resnet50/11", "2", "2"] in lines
    assert ["1", "0", "0", "1", "1"] in lines
    assert [
        "0",
        "0",
        "11",
        "conv1",
        "net",
        "forward",
        "output.0",
        "float32",
        "(3)",
        "ND",
        "inf",
        "1",
        "inf",
        "inf",
        "1",
    ] in lines
    assert ["0", "0", "11", "Node_OpDebug", "forward"] in lines
    assert [
        "1",
        "0",
        "0",
        "fc",
        "net",
        "forward",
        "output.0",
        "float32",
        "(3)",
        "ND",
        "2",
        "0",
        "1",
        "2.23607",
        "0",
    ] in lines


def test_it_prints_the_tensors_and_the_file_of_an_operator(dump: Path) -> None:
    shown = opdump("show", str(dump), "--op", "conv1", "--step", "1", cwd=dump)
    assert shown.returncode == 0
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["input.0", "float16", "(1,1,2,2,16)", "NC1HWC0", "1", "1", "1", "8", "0"] in lines
    path = dump / TIME / "0" / "resnet50" / "11" / "1" / f"Conv2D.net_conv1.1.5.{STAMP + 10}"
    assert [line for line in lines if line and line[0].startswith("/")] == [[str(path)]]


def test_it_prints_where_the_file_of_an_overflow_is(dump: Path) -> None:
    shown = opdump("show", str(dump), "--op", "Node_OpDebug", "--step", "0", cwd=dump)
    assert shown.returncode == 0
    assert f"file='{TIME}/0/resnet50/11/0/Opdebug.Node_OpDebug.59.5.{STAMP + 1}'" in shown.stdout


def test_one_directory_of_the_dump_can_be_shown(dump: Path) -> None:
    shown = opdump("show", str(dump / TIME / "0" / "resnet50" / "11" / "1"), "--json", cwd=dump)
    assert shown.returncode == 0
    value = json.loads(shown.stdout)
    assert (value["ranks"], value["steps"], value["graphs"]) == ([0], [1], [11])
    (run,) = value["runs"]
    assert run["device_target"] == "Ascend"
    conv, overflow = value["operators"]
    assert (conv["op_type"], conv["op_name"], conv["task_id"], conv["stream_id"]) == ("Conv2D", "net/conv1", 1, 5)
    first, second = conv["tensors"]
    assert (first["dtype"], first["shape"], first["format"]) == ("float16", [1, 1, 2, 2, 16], "NC1HWC0")
    assert second["statistics"]["max"] == "inf"
    assert second["file"].endswith(f"Conv2D.net_conv1.1.5.{STAMP + 10}")
    assert overflow["tensors"] == []


def test_a_tensor_that_cannot_be_decoded_ends_with_1_after_the_others(dump: Path) -> None:
    whole = np.ones(4, "float32")
    add_dump_file(
        dump / TIME / "1",
        f"Relu.r.3.5.{STAMP}",
        "r",
        outputs=(tensor("output", 0, whole, short=3), tensor("output", 1, whole)),
    )
    shown = opdump("show", str(dump), "--op", "r", cwd=dump)
    assert shown.returncode == 1
    assert "output.0  float32  (4)    ND\n" in shown.stdout
    assert "output.1  float32  (4)    ND        1    1    1       2        0" in shown.stdout
    assert shown.stderr.startswith("opdump: problem: ")
    assert "output:0 holds 13 bytes" in shown.stderr


def test_a_zero_byte_file_ends_with_1_after_the_others(dump: Path) -> None:
    (dump / TIME / "1" / f"Relu.r.3.5.{STAMP}").touch()
    shown = opdump("show", str(dump), "--rank", "1", cwd=dump)
    assert shown.returncode == 1
    assert "fc " in shown.stdout
    assert "holds 0 bytes" in shown.stderr


def test_an_operator_that_is_not_there_ends_with_1(dump: Path) -> None:
    shown = opdump("show", str(dump), "--op", "nothing", cwd=dump)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert "holds no operator 'nothing'" in shown.stderr


def test_a_directory_without_a_dump_says_what_either_layout_needs(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    shown = opdump("show", str(tmp_path), cwd=tmp_path)
    assert shown.returncode == 1
    assert "rank_0/" in shown.stderr
    assert "{device_id}" in shown.stderr
