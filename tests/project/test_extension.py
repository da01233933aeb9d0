"""examples/extension, installed: what a package adds is found and used, and reported if it is broken."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cli.json_shapes import mistakes

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "extension"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extension")
    source, target = folder / "source", folder / "installed"
    subprocess.run(["cp", "-r", EXAMPLE, source], check=True)  # a build writes beside its source
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--no-build-isolation", "--target", target, source], check=True)
    return target


def python(installed: Path, *arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_the_contract_tests_of_the_example_pass(installed: Path, tmp_path: Path) -> None:
    pytest_here: list[str | Path] = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "--rootdir",
        tmp_path,
    ]
    done = python(installed, *pytest_here, EXAMPLE / "tests", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "failed" not in done.stdout
    assert int(done.stdout.split(" passed")[0].split()[-1]) > 15


def test_a_program_is_captured_shown_and_checked(installed: Path, tmp_path: Path) -> None:
    run = python(installed, "-m", "opdump", "run", "--path", "dump", EXAMPLE / "train.py", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout == python(installed, EXAMPLE / "train.py", cwd=tmp_path).stdout
    assert "infinity" in run.stderr
    assert "Multiply" in run.stderr
    shown = python(installed, "-m", "opdump", "show", "dump", "--op", "MatMul", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "toyflow 0.1 CPU" in python(installed, "-m", "opdump", "show", "dump", cwd=tmp_path).stdout
    checked = python(installed, "-m", "opdump", "check", "dump", "--json", cwd=tmp_path)
    findings = json.loads(checked.stdout)["findings"]
    assert {"inf", "all equal"} <= {each["check"] for each in findings}
    assert any(each["check"] == "all equal" and each["text"] == "8 times 1" for each in findings), findings
    watch = ("--watch", "tensor_magnitude magnitude_gt=1")
    watched = json.loads(python(installed, "-m", "opdump", "check", "dump", "--json", *watch, cwd=tmp_path).stdout)
    assert {hit["condition"] for hit in watched["hits"] if not hit["error_code"]} == {"tensor_magnitude"}
    named = python(
        installed, "-m", "opdump", "check", "dump", "--watch", "tensor_magnitud magnitude_gt=1", cwd=tmp_path
    )
    assert "nearest: 'tensor_magnitude'" in named.stderr


def test_a_statistic_of_a_package_is_taken_filed_and_shown(installed: Path, tmp_path: Path) -> None:
    common = {
        "dump_mode": 0,
        "path": str(tmp_path / "dump"),
        "net_name": "Toy",
        "iteration": "all",
        "input_output": 0,
        "kernels": [],
        "support_device": [0],
        "op_debug_mode": 0,
    }
    common |= {"saved_data": "statistic", "statistic_category": ["zero fraction", "max", "md5"]}
    config = tmp_path / "data_dump.json"
    config.write_text(json.dumps({"common_dump_settings": common, "e2e_dump_settings": {"enable": True}}))
    run = python(installed, "-m", "opdump", "run", "-c", config, EXAMPLE / "train.py", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    (table,) = (tmp_path / "dump").glob("rank_0/Toy/0/1/statistic.csv")
    heading, *rows = (line.split(",") for line in table.read_text().replace('"', "").splitlines())
    assert heading[-3:] == ["Zero Fraction", "Max Value", "MD5"]
    relu = [row for row in rows if row[0] == "Relu" and row[5] == "output"]
    assert [row[-3] for row in relu] == ["0"]
    matrices = [row for row in rows if row[0] == "MatMul" and row[5] == "input"]
    assert {row[-3] for row in matrices} == {"0"}
    for where in (installed, tmp_path):  # the contents of a dump are shown even if the package is not installed
        shown = python(where, "-m", "opdump", "show", "dump", "--op", "MatMul", "--step", "0", cwd=tmp_path)
        assert "zero fraction" in shown.stdout, shown.stderr
        listed = json.loads(python(where, "-m", "opdump", "show", "dump", "--json", cwd=tmp_path).stdout)
        assert mistakes("show", listed) == []
        fractions = {
            (operator["op_type"], tensor["io"]): tensor["statistics"]["zero fraction"]
            for operator in listed["operators"]
            for tensor in operator["tensors"]
            if operator["step"] == 0
        }
        assert fractions["Relu", "output"] == pytest.approx(2 / 3)
    common["statistic_category"] = ["zero fractions"]
    config.write_text(json.dumps({"common_dump_settings": common, "e2e_dump_settings": {"enable": True}}))
    done = python(installed, "-m", "opdump", "run", "-c", config, EXAMPLE / "train.py", cwd=tmp_path)
    assert done.returncode != 0
    assert "nearest: 'zero fraction'" in done.stderr


def test_a_dialect_and_a_report_format_of_a_package_are_used(installed: Path, tmp_path: Path) -> None:
    new = python(
        installed, "-m", "opdump", "config", "new", "--dialect", "toyflow", "--path", tmp_path / "dump", cwd=tmp_path
    )
    assert new.returncode == 0, new.stderr
    checked = python(installed, "-m", "opdump", "config", "check", "toyflow.json", cwd=tmp_path)
    assert json.loads(checked.stdout)["dialect"] == "toyflow"
    run = python(installed, "-m", "opdump", "run", "-c", "toyflow.json", EXAMPLE / "train.py", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    shown = python(installed, "-m", "opdump", "show", "dump", "--op", "Relu", "--format", "markdown", cwd=tmp_path)
    assert shown.stdout.startswith("| step | operator | tensor | shape | max | min |\n| --- |"), shown.stderr
    assert "| output.0 | (2,3) |" in shown.stdout
    for verb in ("show", "check", "overflow"):
        done = python(installed, "-m", "opdump", verb, "dump", "--format", "markdwon", cwd=tmp_path)
        assert done.returncode == 2
        assert "nearest: 'markdown'" in done.stderr


METRICS = """
import numpy as np
from opdump.metrics import METRICS, AddedMetrics
one = np.array([1.0, 2.0])
print(METRICS.added().keys() == {"share within 1%"}, AddedMetrics().of(one, one * [1, 1.5]))
"""


def test_a_metric_of_a_package_is_taken(installed: Path, tmp_path: Path) -> None:
    done = python(installed, "-c", METRICS, cwd=tmp_path)
    assert done.stdout == "True {'share within 1%': 0.5}\n", done.stderr


def test_what_is_there_is_listed_and_what_is_broken_with_its_reason(installed: Path, tmp_path: Path) -> None:
    listed = json.loads(python(installed, "-m", "opdump", "extensions", "--json", cwd=tmp_path).stdout)
    assert mistakes("extensions", listed) == []
    found = {(each["group"], each["name"]): each for each in listed}
    assert found["opdump.adapters", "toyflow"]["package"] == "opdump-toyflow 1.0"
    assert found["opdump.adapters", "toyflow"]["reason"] == ""
    assert found["opdump.checks", "nan"]["package"] == ""
    broken = tmp_path / "broken"
    info = broken / "opdump_broken-2.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: opdump-broken\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text("[opdump.checks]\nodd = nowhere:odd\nnan = nowhere:nan\n")
    done = python(broken, "-m", "opdump", "extensions", cwd=tmp_path)
    assert done.returncode == 1
    assert "No module named 'nowhere'" in done.stdout
    assert "the name is taken by opdump" in done.stdout
    assert (
        python(installed, "-m", "opdump", "run", "--path", "dump", EXAMPLE / "train.py", cwd=tmp_path).returncode == 0
    )
    checked = python(broken, "-m", "opdump", "check", "dump", cwd=tmp_path)
    assert "opdump-broken 2.0" in checked.stderr
    assert "it is ignored" in checked.stderr


def test_a_layout_of_a_package_is_written_shown_checked_and_converted(installed: Path, tmp_path: Path) -> None:
    def opdump(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return python(installed, "-m", "opdump", *arguments, cwd=tmp_path)

    run = opdump("run", "--full", "--layout", "appended", "--path", "dump", EXAMPLE / "train.py")
    assert run.returncode == 0, run.stderr
    assert [path.name for path in (tmp_path / "dump").iterdir()] == ["rank_0.1.appended"]
    shown = opdump("show", "dump", "--op", "Multiply", "--json")
    assert shown.returncode == 0, shown.stderr
    tensors = [tensor for each in json.loads(shown.stdout)["operators"] for tensor in each["tensors"]]
    assert {tensor["file"] for tensor in tensors} == {"dump/rank_0.1.appended"}
    findings = json.loads(opdump("check", "dump", "--json").stdout)["findings"]
    assert {"inf", "all equal"} <= {each["check"] for each in findings}
    done = opdump("convert", "dump", "-o", "out", "--json")
    assert done.returncode == 0, done.stderr
    outputs = [name for file in json.loads(done.stdout)["files"] for name in file["outputs"]]
    (first,) = [name for name in outputs if "/0/MatMul." in name and name.endswith(".output.0.npy")]
    weights = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_array_equal(np.load(tmp_path / "out" / first), np.ones((2, 4), np.float32) @ weights)
    cut = tmp_path / "dump" / "rank_0.1.appended"
    os.truncate(cut, cut.stat().st_size // 2)
    assert "cut off" in opdump("show", "dump").stdout + opdump("show", "dump").stderr
    told = opdump("convert", "dump", "-o", "half", "--json")
    assert told.returncode == 1
    assert "is cut off" in told.stdout


TORCH = """
import torch
model = torch.nn.Linear(3, 2)
(model(torch.ones(4, 3)) * torch.tensor([1.0, 2.0])).sum().backward()
torch.optim.SGD(model.parameters(), 0.1).step()
"""


def test_a_framework_of_opdump_is_captured_in_it_too(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TORCH)
    options = ("--full", "--layout", "appended", "--path", "dump")
    run = python(installed, "-m", "opdump", "run", *options, "train.py", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert [path.name for path in (tmp_path / "dump").iterdir()] == ["rank_0.1.appended"]
    shown = json.loads(
        python(installed, "-m", "opdump", "show", "dump", "--json", "--op", "addmm", cwd=tmp_path).stdout
    )
    tensors = [tensor for each in shown["operators"] for tensor in each["tensors"]]
    assert {"Parameter.weight", "Parameter.bias"} <= {tensor["source"] for tensor in tensors}


def test_the_code_on_the_page_is_that_of_the_example() -> None:
    page = (EXAMPLE.parents[1] / "docs" / "extensions.md").read_text(encoding="utf-8")
    blocks = [block for block in re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if "def " in block]
    sources = [path.read_text(encoding="utf-8") for path in EXAMPLE.rglob("*.py")]
    assert blocks
    assert all(any(block in source for source in sources) for block in blocks)


def test_a_layout_that_is_none_or_cannot_be_loaded_is_refused_with_the_reason(installed: Path, tmp_path: Path) -> None:
    script = EXAMPLE / "train.py"
    done = python(installed, "-m", "opdump", "run", "--layout", "apended", "--path", "dump", script, cwd=tmp_path)
    assert done.returncode == 2
    assert "nearest: 'appended'" in done.stderr
    info = tmp_path / "broken" / "opdump_broken-2.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: opdump-broken\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text("[opdump.layouts]\nodd = nowhere:odd\nrude = rude:Rude\n")
    broken = tmp_path / "broken"
    (broken / "rude.py").write_text("class Rude:\n    name = 'rude'\n    def detect(path):\n        return path / 0\n")
    listed = python(broken, "-m", "opdump", "extensions", cwd=tmp_path)
    assert (listed.returncode, "No module named 'nowhere'" in listed.stdout) == (1, True)
    done = python(broken, "-m", "opdump", "run", "--layout", "odd", "--path", "dump", script, cwd=tmp_path)
    assert (done.returncode, "No module named 'nowhere'" in done.stderr) == (1, True)
    (tmp_path / "empty").mkdir()
    shown = python(broken, "-m", "opdump", "show", "empty", cwd=tmp_path)
    assert "opdump-broken 2.0" in shown.stderr
    assert "the layout 'rude' cannot examine it (TypeError: " in shown.stderr
    assert shown.stderr.count("it is ignored") == 2


def test_an_unknown_framework_is_named_with_the_known_ones(installed: Path, tmp_path: Path) -> None:
    script = EXAMPLE / "train.py"
    done = python(installed, "-m", "opdump", "run", "--framework", "caffe", "--path", "dump", script, cwd=tmp_path)
    assert done.returncode == 1
    expected = '"auto", "torch", "tensorflow", "jax", "mindspore", "onnxruntime" or "toyflow"'
    assert f"framework is 'caffe', expected {expected}" in done.stderr
