"""`opdump infer`: what it runs, what it prints, and how it exits."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import opdump as package
from tests.acl.program import (
    assert_converts_to_the_values_of_the_run,
    config,
    converted,
    dump_files,
    feeds_of,
    nodes_dumped,
    numbers,
    write_model,
    write_small,
)
from tests.cli.json_shapes import mistakes
from tests.cli.programs import opdump

pytestmark = pytest.mark.torch  # the models are exported from PyTorch

Ended = subprocess.CompletedProcess[str]


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    path = tmp_path / "dump"
    path.mkdir()
    return path


def _write(path: Path, dtype: int, shape: tuple[Any, ...], op_type: str = "Identity") -> Path:
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x"], ["y"], "node")],
        "graph",
        [helper.make_tensor_value_info("x", dtype, shape)],
        [helper.make_tensor_value_info("y", dtype, shape)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def test_random_inputs_are_those_of_the_printed_seed(dump: Path, tmp_path: Path) -> None:
    write_small(tmp_path, "net.onnx", shape=("N", 3))
    config(tmp_path, dump)
    first = opdump("infer", "net.onnx", "-c", "acl.json", cwd=tmp_path)
    assert first.returncode == 0
    found = re.search(r"opdump: random x; to repeat: --seed (\d+)\n", first.stderr)
    assert found
    again = opdump("infer", "net.onnx", "-c", "acl.json", "--seed", found[1], cwd=tmp_path)
    assert again.returncode == 0
    runs = sorted(dump.glob("*/0/net/1/0"))
    arrays = [sorted(array.tobytes() for array in converted(run, tmp_path / run.parts[-5]).values()) for run in runs]
    assert all(each == arrays[0] for each in arrays), "also if both runs fell into one second and share a directory"
    assert re.search(
        r"opdump: 2 operators ran: 2 captured; step 0, [\d.,]+ k?B in 5 files, [\d.]+ s\n"
        rf"opdump: no NaN, no infinity in 5 tensors\nopdump: next: opdump show {dump}\n$",
        first.stderr,
    )
    assert first.stdout == ""
    shown = opdump("show", str(dump), cwd=tmp_path)
    assert shown.returncode == 0
    assert "second" in shown.stdout


def test_given_inputs_are_dumped_as_they_were_given(dump: Path, tmp_path: Path) -> None:
    path = write_model(tmp_path, "convnet", "net.onnx")
    feeds = feeds_of("convnet")
    np.save(tmp_path / "x.npy", feeds["x"])
    config(tmp_path, dump)
    ended = opdump("infer", "net.onnx", "-c", "acl.json", "--input", "x=x.npy", "--repeat", "2", cwd=tmp_path)
    assert ended.returncode == 0
    assert "random" not in ended.stderr
    assert "steps 0-1" in ended.stderr
    for step in (0, 1):
        (folder,) = dump.glob(f"*/0/net/1/{step}")
        assert assert_converts_to_the_values_of_the_run(folder, tmp_path / f"npy{step}", path, feeds) > 25


def test_a_shape_may_be_said_and_is_1_otherwise(dump: Path, tmp_path: Path) -> None:
    write_small(tmp_path, "net.onnx", shape=("N", "M"))
    ended = opdump("infer", "net.onnx", "--path", "new", "--shape", "x=2,5", cwd=tmp_path)
    assert ended.returncode == 0
    shapes = {package.read_dump_file(path).outputs[0].shape for path in dump_files(tmp_path / "new")}
    assert shapes == {(2, 5)}
    ended = opdump("infer", "net.onnx", "--path", "one", cwd=tmp_path)
    assert {package.read_dump_file(path).outputs[0].shape for path in dump_files(tmp_path / "one")} == {(1, 1)}


def test_the_optimised_model_is_dumped_and_compared(dump: Path, tmp_path: Path) -> None:
    write_model(tmp_path, "convnet", "net.onnx")
    config(tmp_path, dump)
    ended = opdump("infer", "net.onnx", "-c", "acl.json", "--optimize", "extended", "--json", cwd=tmp_path)
    assert ended.returncode == 0
    line = json.loads(ended.stderr.splitlines()[-1])
    assert line["largest_difference"] is not None
    assert line["captured"] == len(dump_files(dump))
    assert "FusedConv" in {path.name.partition(".")[0] for path in dump_files(dump)}
    text = opdump("infer", "net.onnx", "-c", "acl.json", "--optimize", "extended", cwd=tmp_path).stderr
    assert "outputs of the dumped run differ from those of a plain run by " in text


def test_the_config_chooses(dump: Path, tmp_path: Path) -> None:
    write_small(tmp_path, "net.onnx")
    config(tmp_path, dump, dump_list=[{"model_name": "net", "layer": ["second"]}], dump_step="1")
    ended = opdump("infer", "net.onnx", "-c", "acl.json", "--repeat", "3", cwd=tmp_path)
    assert "2 operators ran: 1 captured, 1 skipped" in ended.stderr
    assert nodes_dumped(dump) == {"second"}
    assert {path.parent.name for path in dump_files(dump)} == {"1"}


def test_a_relative_dump_path_lies_under_the_current_directory(tmp_path: Path, dump: Path) -> None:
    write_small(tmp_path, "net.onnx")
    config(tmp_path, Path("dump"))
    assert opdump("infer", "net.onnx", "-c", "acl.json", cwd=tmp_path).returncode == 0
    assert dump_files(dump)


def test_nothing_dumped_is_reported(dump: Path, tmp_path: Path) -> None:
    write_small(tmp_path, "net.onnx")
    config(tmp_path, dump, dump_list=[{"model_name": "another"}])
    ended = opdump("infer", "net.onnx", "-c", "acl.json", cwd=tmp_path)
    assert ended.returncode == 0
    assert "no loaded model is called 'another'; the loaded models are 'graph', 'net'" in ended.stderr
    assert "nothing was captured: no model in dump_list ran; the models that ran are 'graph', 'net'" in ended.stderr
    assert opdump("infer", "net.onnx", "-c", "acl.json", "--strict", cwd=tmp_path).returncode == 1
    (tmp_path / "acl.json").write_text('{"dump": {}}')
    assert "valid, but enables nothing" in opdump("infer", "net.onnx", "-c", "acl.json", cwd=tmp_path).stderr


def test_a_run_that_fails_ends_with_1_and_its_node_is_on_disk(dump: Path, tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Gather", ["x", "i"], ["y"], "pick")],
        "graph",
        [helper.make_tensor_value_info("x", 1, (3,)), helper.make_tensor_value_info("i", 7, (1,))],
        [helper.make_tensor_value_info("y", 1, (1,))],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "net.onnx"
    )
    config(tmp_path, dump, dump_scene="lite_exception")
    np.save(tmp_path / "i.npy", np.array([9]))
    ended = opdump("infer", "net.onnx", "-c", "acl.json", "--input", "i=i.npy", cwd=tmp_path)
    assert ended.returncode == 1
    assert "opdump: error: net.onnx: its run failed: " in ended.stderr
    assert "pick" in ended.stderr
    assert list((dump / "extra-info" / "data-dump" / "0").glob("exception_info.*"))


def test_an_operator_that_overflows_is_dumped_and_none_is_reported(dump: Path, tmp_path: Path) -> None:
    write_small(tmp_path, "net.onnx")
    config(tmp_path, dump, dump_list=None, dump_mode=None, dump_debug="on")
    np.save(tmp_path / "x.npy", np.full((2, 3), 3e38, np.float32))
    ended = opdump("infer", "net.onnx", "-c", "acl.json", "--seed", "1", cwd=tmp_path)
    assert (ended.returncode, list(dump.iterdir())) == (0, [])
    assert ended.stderr.endswith("opdump: net ran and no operator overflowed, so nothing was written\n")
    ended = opdump("infer", "net.onnx", "-c", "acl.json", "--input", "x=x.npy", cwd=tmp_path)
    assert ended.returncode == 0
    assert "1 captured, 1 skipped; " in ended.stderr
    assert sorted(path.name.split(".")[0] for path in dump_files(dump)) == ["Add", "Opdebug"]
    config(tmp_path, dump, dump_scene="lite_exception")
    ended = opdump("infer", "net.onnx", "-c", "acl.json", cwd=tmp_path)
    assert ended.stderr.endswith("opdump: net ran and no operator failed, so nothing was written\n")


def test_a_data_dump_json_dumps_in_its_own_layout(dump: Path, tmp_path: Path) -> None:
    write_small(tmp_path, "net.onnx")
    common = {
        "dump_mode": 0, "path": str(dump), "net_name": "Net", "iteration": "0", "saved_data": "full", "input_output": 0,
        "kernels": [], "support_device": [0],
    }  # fmt: skip
    sections = {"common_dump_settings": common, "e2e_dump_settings": {"enable": True}}
    (tmp_path / "data_dump.json").write_text(json.dumps(sections))
    ended = opdump("infer", "net.onnx", "-c", "data_dump.json", "--repeat", "2", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    (folder,) = dump.glob("rank_0/Net/*/0")
    assert len(list(folder.glob("*.npy"))) == 5
    assert "step 0" in ended.stderr


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [(onnx.TensorProto.DataType.Value(name), (2, 3)) for name in ("FLOAT16", "BFLOAT16", "DOUBLE", "INT64", "UINT8", "BOOL")],
)  # fmt: skip
def test_random_inputs_have_the_type_of_the_model(dtype: int, shape: tuple[int, ...], tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"], "node"), helper.make_node("Cast", ["y"], ["z"], "cast", to=1)],
        "graph",
        [helper.make_tensor_value_info("x", dtype, shape)],
        [helper.make_tensor_value_info("y", dtype, shape), helper.make_tensor_value_info("z", 1, shape)],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "net.onnx"
    )
    ended = opdump("infer", "net.onnx", "--path", "dump", "--seed", "1", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    path, _ = sorted(dump_files(tmp_path / "dump"), key=lambda path: path.name.startswith("Cast"))
    array = package.read_dump_file(path).inputs[0].to_host()
    assert array.shape == shape
    assert len(np.unique(array)) > 1


_WRONG: dict[str, tuple[list[str], int, str]] = {
    "no config": (["net.onnx"], 2, "give -c acl.json, or --path DIR"),
    "no model": (["none.onnx", "--path", "d"], 1, "cannot be read as a model: No such file"),
    "no ONNX": (["acl.json", "--path", "d"], 1, "not an ONNX model"),
    "no such config": (["net.onnx", "-c", "none.json"], 1, "none.json"),
    "a wrong value": (["net.onnx", "-c", "wrong.json"], 1, "EP0002"),
    "no such input": (
        ["net.onnx", "--path", "d", "--input", "z=x.npy"],
        2,
        "--input z: the model has no such input; it has x",
    ),
    "no such shape": (["net.onnx", "--path", "d", "--shape", "z=1"], 2, "--shape z: the model has no such input"),
    "an input twice": (["net.onnx", "--path", "d", "--input", "x=a", "--input", "x=b"], 2, "given twice"),
    "no name": (["net.onnx", "--path", "d", "--input", "x.npy"], 2, "expected NAME=VALUE, as in --input x=image.npy"),
    "no numbers": (["net.onnx", "--path", "d", "--shape", "x=a,b"], 2, "expected numbers, as in --shape x=1,3,224,224"),
    "another shape": (["net.onnx", "--path", "d", "--shape", "x=2,4"], 1, "and the model has (2, 3) there"),
    "no file": (["net.onnx", "--path", "d", "--input", "x=none.npy"], 1, "none.npy: cannot be read as an npy file"),
    "no npy": (["net.onnx", "--path", "d", "--input", "x=acl.json"], 1, "acl.json: cannot be read as an npy file"),
    "another type": (
        ["net.onnx", "--path", "d", "--input", "x=doubles.npy"],
        1,
        "elements are float64, and x is float32",
    ),
    "text": (["text.onnx", "--path", "d"], 1, "give one with --input x=FILE.npy"),
}


@pytest.mark.parametrize("name", _WRONG)
def test_what_cannot_be_done_is_reported_and_leaves_nothing(name: str, dump: Path, tmp_path: Path) -> None:
    write_small(tmp_path, "net.onnx")
    _write(tmp_path / "text.onnx", onnx.TensorProto.STRING, (1,))
    config(tmp_path, dump)
    config(tmp_path, dump, "wrong.json", dump_mode="both")
    np.save(tmp_path / "doubles.npy", numbers(2, 3).astype(np.float64))
    arguments, code, message = _WRONG[name]
    ended = opdump("infer", *arguments, cwd=tmp_path)
    assert ended.returncode == code, ended.stderr
    assert message in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr
    assert not dump_files(tmp_path)


@pytest.mark.parametrize("how", ["acl", "mindspore-2.3", "mindspore-async"])
def test_the_closing_line_counts_what_lies_on_the_disk(how: str, dump: Path, tmp_path: Path) -> None:
    write_small(tmp_path, "net.onnx", shape=("N", 3))
    name = "acl.json" if how == "acl" else "data_dump.json"
    config(tmp_path, dump)
    if how != "acl":
        common = {
            "support_device": [0],
            "dump_mode": 0,
            "net_name": "Net",
            "path": str(dump),
            "iteration": "all",
            "input_output": 0,
            "kernels": [],
        }
        form = {"file_format": "bin"} if how == "mindspore-async" else {}
        content = {"common_dump_settings": common, "e2e_dump_settings": {"enable": how != "mindspore-async", **form}}
        (tmp_path / name).write_text(json.dumps(content))
    ended = opdump("infer", "net.onnx", "-c", name, "--json", cwd=tmp_path)
    said = json.loads(ended.stderr.splitlines()[-1])
    assert mistakes("infer", said) == []
    files = [path for path in dump.rglob("*") if path.is_file()]
    assert (said["files"], said["bytes"]) == (len(files), sum(path.stat().st_size for path in files)), files
    assert said["files"] > 1


def test_tensors_are_checked_while_the_model_runs(dump: Path, tmp_path: Path) -> None:
    _write(tmp_path / "net.onnx", onnx.TensorProto.FLOAT, (4,), "Sqrt")
    np.save(tmp_path / "x.npy", np.array([1, -1, 4, 9], np.float32))
    watched = ("--watch", "tensor_too_large max_gt=2")
    done = opdump("infer", "net.onnx", "--path", str(dump), "--input", "x=x.npy", "--check", *watched, cwd=tmp_path)
    assert done.returncode == 0
    assert "what the checks found" in done.stderr
    assert re.search(r"nan .*1 of 4 elements", done.stderr)
    assert "tensor_too_large" in done.stderr
    wrong = opdump("infer", "net.onnx", "--path", str(dump), "--watch", "tensor_too_big", cwd=tmp_path)
    assert wrong.returncode == 1
    assert "tensor_too_large" in wrong.stderr, "the nearest name"
