"""A PyTorch program under a data_dump.json for the asynchronous dump."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import opdump
from opdump.dump_file.opdebug import decode_opdebug
from opdump.index.runs import METADATA
from opdump.plan import FileFormat
from opdump.records import TensorRecord
from opdump.testing.layout_tests import assert_same_bits
from tests.cli.programs import opdump as run_opdump
from tests.torch.programs import PROGRAMS
from tests.torch.test_capture_changes_nothing import assert_identical

FORMS = pytest.mark.parametrize(
    ("file_format", "acl_form", "own"),
    [
        ("npy", False, {}),
        ("bin", False, {}),
        ("npy", True, {}),
        ("bin", True, {}),
        ("bin", True, {"jit_level": "O2"}),
    ],
)


def _config(folder: Path, file_format: str, own: Mapping[str, Any] | None = None, **settings: Any) -> Path:
    common = {
        "dump_mode": 0,
        "path": "/unused",
        "net_name": "Net",
        "iteration": "all",
        "input_output": 0,
        "kernels": [],
        "support_device": [0],
        "op_debug_mode": 0,
        "file_format": file_format,
    }
    file = folder / "data_dump.json"
    file.write_text(json.dumps({"common_dump_settings": common | settings, "opdump": own or {}}), encoding="utf-8")
    return file


def _train() -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(2):
        loss = model(torch.ones(5, 4)).to(torch.bfloat16).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _by_place(records: opdump.Catalog) -> dict[tuple[int, str, int, str, int], TensorRecord]:
    return {
        (record.op.step, record.op.op_name, record.op.occurrence, record.io, record.slot): record
        for record in records
        if record.op.op_type != "Parameter"
    }


@FORMS
def test_it_holds_what_the_synchronous_dump_holds_but_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: str, acl_form: bool, own: Mapping[str, Any]
) -> None:
    with opdump.capture(path=tmp_path / "sync"):
        plain = _train()
    config = _config(tmp_path, file_format, own)
    if acl_form:
        monkeypatch.setenv("MS_ACL_DUMP_CFG_PATH", str(config))
    with opdump.capture(config, path=tmp_path / "async") as dump:
        assert _train() == plain
    assert dump.report is not None
    catalog = opdump.open(tmp_path / "async")
    assert not catalog.problems
    assert catalog.steps == dump.report.steps == (0, 1)
    assert not [op for op in catalog.ops() if op.op_type == "Parameter"]
    expected, found = _by_place(opdump.open(tmp_path / "sync")), _by_place(catalog)
    assert found.keys() == expected.keys()
    for place, record in found.items():
        assert (record.dtype, record.shape, record.argument) == (
            expected[place].dtype,
            expected[place].shape,
            expected[place].argument,
        )
        assert record.payload is not None
        other = expected[place].payload
        assert other is not None
        assert_same_bits(record.payload.to_host(), other.to_host())


@FORMS
def test_files_lie_where_the_document_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: str, acl_form: bool, own: Mapping[str, Any]
) -> None:
    config = _config(tmp_path, file_format, own, iteration="0")
    if acl_form:
        monkeypatch.setenv("MS_ACL_DUMP_CFG_PATH", str(config))
    root = tmp_path / "async"
    with opdump.capture(config, path=root):
        _train()
    files = [path.relative_to(root) for path in root.rglob("*") if path.is_file() and METADATA not in path.parts]
    if acl_form:
        assert Path("acl_dump_0.json") in files
        files.remove(Path("acl_dump_0.json"))
        assert {path.parts[0] for path in files} == {"0"}
        files = [path.relative_to("0") for path in files]
    time, device = files[0].parts[:2]
    assert (len(time), device) == (14, "0")
    below = [path.relative_to(time, device) for path in files]
    in_model = not acl_form or own.get("jit_level") == "O2"
    assert {str(path.parent) for path in below} == {"Net/0/0" if in_model else "."}
    first = min((path.name for path in below if "0-Linear_addmm-op10" in path.name), key=_stamp).split(".")
    names = ["addmm", "Default_network-Sequential_0-Linear_addmm-op10"]
    assert first[:4] == [*(names if in_model else reversed(names)), "65535", "65535"]
    assert len(first) == (5 if file_format == "bin" else 9)


def _stamp(name: str) -> str:
    return name.split(".")[4]


@pytest.mark.parametrize("saved_data", ["statistic", "full"])
def test_statistics_are_those_of_the_synchronous_dump(tmp_path: Path, saved_data: str) -> None:
    with opdump.capture(path=tmp_path / "sync", saved_data="statistic", iteration="0"):
        _train()
    config = _config(tmp_path, "npy", saved_data=saved_data, iteration="0")
    with opdump.capture(config, path=tmp_path / "async"):
        _train()
    (table,) = (tmp_path / "async").rglob("statistic.csv")
    (expected,) = (tmp_path / "sync").rglob("statistic.csv")
    lines, others = table.read_text(encoding="utf-8").splitlines(), expected.read_text(encoding="utf-8").splitlines()
    assert lines[0] == others[0]
    numbers = [line.split(",", 5)[5] for line in lines[1:]]
    assert numbers == [line.split(",", 5)[5] for line in others[1:] if not line.startswith("Parameter")]
    assert (len(list((tmp_path / "async").rglob("*.npy"))) > 0) == (saved_data == "full")


@pytest.mark.parametrize("program", sorted(PROGRAMS))
@pytest.mark.parametrize("file_format", ["npy", "bin"])
def test_training_is_bit_identical(program: str, file_format: FileFormat, tmp_path: Path) -> None:
    train = PROGRAMS[program]
    plain = train()
    with opdump.capture(path=tmp_path, file_format=file_format) as dump:
        captured = train()
    assert_identical(plain, captured)
    assert dump.report is not None
    assert dump.report.captured > 300
    assert dump.report.tensors_skipped.keys() <= {"allocation", "empty"}


def test_it_is_shown_and_converted(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path / "dump", file_format="bin", iteration="0"):
        _train()
    shown = run_opdump("show", str(tmp_path / "dump"), cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "torch" in shown.stdout
    shown = run_opdump("show", str(tmp_path / "dump"), "--skipped", cwd=tmp_path)
    assert shown.returncode == 0
    assert "view" in shown.stdout
    expected = {
        f"{record.io}.{record.slot}": record
        for record in opdump.open(tmp_path / "dump")
        if record.op.op_name.endswith("0-Linear/addmm-op10")
    }
    (file,) = (tmp_path / "dump").rglob("addmm.*_0-Linear_addmm-op10.*")
    for output, arguments in (
        (tmp_path / "npy", ("-m", "opdump", "convert", str(file.parent), "-o", str(tmp_path / "npy"))),
        (tmp_path / "parsed", ("-m", "opdump.msaccucmp", "convert", "-d", str(file), "-out", str(tmp_path / "parsed"))),
    ):
        done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        for part, record in expected.items():
            (found,) = output.rglob(f"{file.name}.{part}*.npy")
            assert record.payload is not None
            assert_same_bits(np.load(found), record.payload.to_host())


def test_without_its_index_it_opens_from_its_files(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path, file_format="bin"):
        _train()
    with_index = [record for record in opdump.open(tmp_path) if record.data_size]
    for directory in list(tmp_path.rglob(METADATA)):
        shutil.rmtree(directory)
    catalog = opdump.open(tmp_path)
    found = [record for record in catalog if record.data_size]
    assert not catalog.problems
    for record, other in zip(found, with_index, strict=True):
        assert (record.op.op_name, record.io, record.dtype) == (other.op.op_name, other.io, other.dtype)
        assert record.payload is not None
        assert other.payload is not None
        assert_same_bits(record.payload.to_host(), other.payload.to_host())


def _overflowing() -> None:
    weight = torch.full((3,), 60000.0, dtype=torch.float16)
    weight + 1
    weight * 2  # overflows
    torch.zeros(4).scatter_add(0, torch.zeros(2, dtype=torch.int64), torch.full((2,), 3e38))


@pytest.mark.parametrize("file_format", ["npy", "bin"])
@pytest.mark.parametrize(
    ("mode", "types", "statuses"),
    [
        (1, ["mul"], ["AI Core 0x20"]),
        (2, ["scatter_add"], ["DHA Atomic Add 0x900"]),
        (3, ["mul", "scatter_add"], ["AI Core 0x20", "DHA Atomic Add 0x900"]),
    ],
)
def test_overflow_mode_dumps_what_overflowed_and_says_how(
    tmp_path: Path, file_format: str, mode: int, types: list[str], statuses: list[str]
) -> None:
    config = _config(tmp_path, file_format, op_debug_mode=mode)
    with opdump.capture(config, path=tmp_path / "dump"):
        _overflowing()
    catalog = opdump.open(tmp_path / "dump")
    assert [op.op_type for op in catalog.ops() if op.op_type != "Opdebug"] == types
    told = [op for op in catalog.ops() if op.op_type == "Opdebug"]
    assert len(told) == len(types)
    found = []
    for op in told:
        path = tmp_path / "dump" / op.arguments["file"]
        if file_format == "npy":
            reports = json.loads(path.read_text(encoding="utf-8"))
            found += [f"{name} {report['status']:#x}" for name, report in reports.items() if report["status"]]
        else:
            record = decode_opdebug(opdump.read_dump_file(path).outputs[0].data.read())
            found += [f"{report.accelerator} {report.statuses[0]:#x}" for report in record.overflows]
    assert found == statuses
    shown = run_opdump("overflow", str(tmp_path / "dump"), cwd=tmp_path)
    assert "mul" in shown.stdout or "scatter_add" in shown.stdout, shown.stdout + shown.stderr


@pytest.mark.parametrize("file_format", ["npy", "bin"])
def test_nothing_that_overflows_leaves_no_directory(tmp_path: Path, file_format: str) -> None:
    config = _config(tmp_path, file_format, op_debug_mode=3)
    with opdump.capture(config, path=tmp_path / "dump") as dump:
        _train()
    assert dump.report is not None
    assert (dump.report.captured, list((tmp_path / "dump").iterdir())) == (0, [])


@pytest.mark.parametrize("file_format", ["npy", "bin"])
def test_exception_mode_keeps_the_inputs_of_the_operator_that_failed(tmp_path: Path, file_format: str) -> None:
    config = _config(tmp_path, file_format, op_debug_mode=4)
    one, other = torch.ones(2, 3), torch.ones(4, 5)

    def program() -> None:
        _train()
        one @ other

    with opdump.capture(config, path=tmp_path / "dump"), pytest.raises(RuntimeError, match="cannot be multiplied"):
        program()
    (path,) = (tmp_path / "dump" / "extra-info" / "data-dump" / "0").glob("exception_info.*")
    file = opdump.read_dump_file(path)
    assert [tensor.shape for tensor in file.inputs] == [(2, 3), (4, 5)]
    assert "cannot be multiplied" in file.dfx_message
    assert not [each for each in (tmp_path / "dump").iterdir() if each.name != "extra-info"]
    (op,) = opdump.open(tmp_path / "dump").ops()
    assert op.op_type == "mm"


@pytest.mark.parametrize("mode", [1, 3, 4])
def test_the_synchronous_dump_has_these_modes_too(tmp_path: Path, mode: int) -> None:
    config = _config(tmp_path, "npy", {"layout": "mindspore-2.10"}, op_debug_mode=mode)
    with opdump.capture(config, path=tmp_path / "dump"):
        _overflowing()
        with pytest.raises(RuntimeError):
            torch.ones(2, 3) @ torch.ones(4, 5)
    found = {1: ["mul"], 3: ["mul", "scatter_add"], 4: ["mm"]}[mode]
    assert [op.op_type for op in opdump.open(tmp_path / "dump").ops()] == found
    assert (tmp_path / "dump" / "rank_0").is_dir()
