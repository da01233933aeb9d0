"""`opdump run train.py` without a config, with checks, and if nothing is captured."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import opdump as library
from tests.cli.json_shapes import mistakes
from tests.cli.programs import opdump, write_config

pytestmark = pytest.mark.torch

TRAIN = """
import torch

torch.manual_seed(0)
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    y = net(torch.ones(3, 4))
    loss = torch.log(y.abs() + 1 - (step == 1) * 9).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
FINE = TRAIN.replace("(step == 1) * 9", "0")


def _run(folder: Path, script: str, *options: str, arguments: tuple[str, ...] = ()) -> tuple[list[str], int]:
    (folder / "train.py").write_text(script)
    done = opdump("run", *options, "train.py", *arguments, cwd=folder)
    return done.stderr.splitlines(), done.returncode


def test_statistics_of_everything_go_into_a_new_directory_that_the_last_line_names(tmp_path: Path) -> None:
    lines, code = _run(tmp_path, TRAIN)
    assert code == 0
    (path,) = tmp_path.glob("opdump-train-*")
    assert lines[-1] == f"opdump: next: opdump show {path} --op log-op10 --step 1"
    assert lines[-2] == (
        "opdump: first NaN: step 1, aten::log at train.py:9, 6 of 6 elements of output.0 (Default/log-op10)"
    )
    catalog = library.open(path)
    assert catalog.steps_of(0) == (0, 1, 2)
    records = list(catalog.tensors())
    assert records
    assert all(record.statistics for record in records)
    assert not list(path.rglob("*.npy"))


def test_a_second_run_takes_another_directory(tmp_path: Path) -> None:
    for number in (1, 2):
        lines, _ = _run(tmp_path, FINE)
        assert re.fullmatch(r"opdump: no NaN, no infinity in \d+ tensors", lines[-2])
        assert len(list(tmp_path.glob("opdump-train-*"))) == number


def test_options_take_the_place_of_a_config(tmp_path: Path) -> None:
    lines, code = _run(
        tmp_path, TRAIN, "--path", "d", "--full", "--steps", "0|1", "--kernels", "log", "--kernels", "abs"
    )
    assert code == 0
    assert lines[-2].startswith("opdump: first NaN: step 1, ")
    catalog = library.open(tmp_path / "d")
    assert catalog.steps_of(0) == (0, 1)
    assert {execution.op.op_type for execution in catalog.executions()} == {"log", "abs"}
    assert len(list(catalog.tensors())) == 8, "inputs and outputs of both, in two steps"
    assert [file.name for file in (tmp_path / "d").rglob("*.pack")] == ["1.pack"]
    assert not list((tmp_path / "d").rglob("*.npy"))


def test_options_replace_what_a_config_says(tmp_path: Path) -> None:
    common = {"dump_mode": 0, "path": "/nowhere", "net_name": "N", "iteration": "1", "saved_data": "statistic"}
    config = {
        "common_dump_settings": {**common, "input_output": 0, "kernels": [], "support_device": [0]},
        "e2e_dump_settings": {"enable": True},
    }
    (tmp_path / "d.json").write_text(json.dumps(config))
    lines, code = _run(tmp_path, FINE, "-c", "d.json", "--path", "d", "--full", "--steps", "0", "--kernels", "log")
    assert (code, lines[-2]) == (0, "opdump: no NaN, no infinity in 2 tensors")
    assert library.open(tmp_path / "d").steps_of(0) == (0,)
    assert len(list((tmp_path / "d").rglob("*.npy"))) == 2


def test_wrong_steps_end_before_the_script_starts(tmp_path: Path) -> None:
    lines, code = _run(tmp_path, "print('started')", "--steps", "1,2")
    assert code == 1
    assert "steps only supports digits" in lines[-1]
    assert not list(tmp_path.glob("opdump-*"))


HELP = "import argparse, torch\nargparse.ArgumentParser().parse_args()\ntorch.ones(2) + 1\n"


@pytest.mark.parametrize("options", [(), ("--steps", "5")])
def test_the_help_of_a_script_says_nothing_of_steps_and_leaves_nothing(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(HELP)
    done = opdump("run", *options, "train.py", "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("usage: train.py")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("opdump: nothing was captured: ")
    assert "iteration" not in done.stderr
    assert "wanted" not in done.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "train.py"]


def test_the_verdict_is_in_the_json(tmp_path: Path) -> None:
    lines, _ = _run(tmp_path, TRAIN, "--json")
    verdict = json.loads(lines[-1])["verdict"]
    assert (verdict["kind"], verdict["mode"], verdict["step"], verdict["line"]) == ("nan", "data", 1, 9)
    assert verdict["op_name"] == "Default/log-op10"
    assert verdict["file"] == str(tmp_path / "train.py")


@pytest.mark.parametrize(
    ("mode", "script", "verdict"),
    [
        ("on", "torch.full((2,), 1e30) * 1e30", "first overflow: step 0, aten::mul.Tensor at train.py:2 (Default/"),
        ("on", "(torch.ones(2) * 2).view(1, 2) + 1", "no overflow in 3 operators"),
        ("exception", "torch.ones(2) @ torch.ones(3)", "first failure: step 0, aten::dot at train.py:2 (Default/"),
        ("exception", "torch.ones(2) * 2", "no operator failed"),
    ],
)
def test_other_modes_end_with_what_they_look_for(mode: str, script: str, verdict: str, tmp_path: Path) -> None:
    dump = {"dump_debug": "on"} if mode == "on" else {"dump_scene": "aic_err_brief_dump"}
    (tmp_path / "dump").mkdir()
    (tmp_path / "acl.json").write_text(json.dumps({"dump": {"dump_path": str(tmp_path / "dump"), **dump}}))
    lines, _ = _run(tmp_path, f"import torch\n{script}\n", "-c", "acl.json")
    assert lines[-2].startswith(f"opdump: {verdict}"), lines


MASKED = """
import torch

scores = torch.zeros(2, 3)
mask = torch.tensor([[False, True, True], [False, False, True]])
for step in range(2):
    if step == STEP:
        mask = torch.ones(2, 3, dtype=torch.bool)
    masked = scores.masked_fill(mask, float("-inf"))
    weights = torch.softmax(masked, dim=1)
"""


def test_a_mask_is_no_finding_and_what_comes_of_a_row_of_it_is(tmp_path: Path) -> None:
    lines, _ = _run(tmp_path, MASKED.replace("STEP", "5"), "--path", "fine")
    assert re.fullmatch(
        r"opdump: no NaN, no infinity \(outside the mask that Default/masked_fill-op\d+ writes\) in \d+ tensors",
        lines[-2],
    )
    lines, _ = _run(tmp_path, MASKED.replace("STEP", "1"), "--path", "bad")
    assert lines[-2].startswith("opdump: first NaN: step 0, aten::_softmax at train.py:10, 6 of 6 elements of output.0")


def test_what_a_child_process_found_is_reported_by_the_first(tmp_path: Path) -> None:
    program = """
import torch
import torch.multiprocessing as mp


def work(rank):
    for step in range(2):
        torch.log(torch.full((2,), -1.0 if (rank, step) == (1, 0) else 1.0))


if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""
    lines, code = _run(tmp_path, program, "--path", "d")
    assert code == 0
    assert re.match(r"opdump: rank \d+, first NaN: step 0, aten::log at train.py:8, 2 of 2 elements", lines[-2])


PROGRAM = """
import torch

scale = torch.nn.Parameter(torch.full((3,), 2.0))
optimizer = torch.optim.SGD([scale], lr=1e-12)
for step in range(3):
    optimizer.zero_grad()
    hidden = (scale * (1e38 if step == 2 else 1.0) * 10.0).clamp(max=9.0)
    (hidden * 1e-14).sum().backward()
    optimizer.step()
raise SystemExit(4)
"""


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    program = folder / "train.py"
    program.write_text(PROGRAM)
    return opdump("run", "--path", "dump", *options, str(program), cwd=folder)


def test_what_was_found_is_reported_before_the_last_line_and_the_program_ends_as_it_would(tmp_path: Path) -> None:
    done = run(tmp_path, "--check", "--watch", "gradient_vanishing abs_mean_lt=1e-9")
    assert done.returncode == 4
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0] == "opdump: what the checks found:"
    (born,) = [line for line in lines if line.startswith("inf  born")]
    assert born.startswith("inf  born    step 2  mul at train.py:8 ")
    assert any(line.startswith("     KILLED  step 2  clamp at train.py:8 ") for line in lines)
    assert any(line.startswith("gradient_vanishing") and "1e-14 < 1e-09" in line for line in lines)
    assert "next: opdump show" in lines[-1]


def test_json_has_all_that_check_has(tmp_path: Path) -> None:
    done = run(tmp_path, "--json", "--watch", "recommended")
    last = json.loads(done.stderr.splitlines()[-1])
    assert mistakes("run", last) == []
    assert mistakes("check", {"path": "", **last["checked"]}) == []
    assert {"gradient_vanishing", "tensor_overflow"} <= {hit["condition"] for hit in last["checked"]["hits"]}
    assert run(tmp_path, "--json").stderr.splitlines()[-1].count('"checked": null') == 1


def test_an_unknown_condition_is_reported_before_the_program_starts(tmp_path: Path) -> None:
    done = run(tmp_path, "--watch", "gradient_vanish abs_mean_lt=1")
    assert done.returncode == 1
    assert "unknown condition 'gradient_vanish'; nearest: 'gradient_vanishing'" in done.stderr
    assert not (tmp_path / "dump").exists()


ENDING = """
import sys
import torch

net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
sys.exit()
"""


def _acl(folder: Path, **dump: Any) -> Path:
    (folder / "dump").mkdir(exist_ok=True)
    file = folder / "acl.json"
    file.write_text(json.dumps({"dump": {"dump_path": str(folder / "dump"), **dump}}))
    return file


@pytest.mark.parametrize(
    ("script", "config", "reason"),
    [
        (ENDING, {"iteration": "5-8"}, "the program ended steps 0 to 2, but `iteration` selects 5-8"),
        (
            ENDING,
            {"dump_mode": 1, "kernels": ["conv3d"]},
            "no operator that ran matches a name in `kernels`",
        ),
        (ENDING, {"dump_mode": 2}, "nothing is marked; call opdump.set_dump(net)"),
        ("print('no framework here')\n", {}, "the program imported no PyTorch"),
        ("def main():\n    import torch\n\n\nmain()\n", {}, "no operator of PyTorch ran"),
        ("import torch\ntorch.empty(3).view(1, 3)\n", {}, "only operators that compute nothing ran (allocation, view)"),
    ],
)
def test_the_true_reason_is_reported_and_strict_is_an_error(
    script: str, config: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(script)
    name = write_config(tmp_path, **config).name
    told = opdump("run", "-c", name, "train.py", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert reason in told.stderr
    assert "compare" not in told.stderr
    strict = opdump("run", "-c", name, "--strict", "--json", "train.py", cwd=tmp_path)
    assert strict.returncode == 1, strict.stderr
    assert reason in json.loads(strict.stderr.splitlines()[-1])["reason"]


@pytest.mark.parametrize(
    ("dump", "reason", "warning"),
    [
        (
            {"dump_list": [{"model_name": "linear"}]},
            "no model in dump_list ran; the models that ran are 'Linear'",
            "dump_list.model_name: no model is called 'linear'; there are 'Linear'; nearest: 'Linear'",
        ),
        (
            {"dump_list": [{"model_name": "Linear"}], "dump_step": "7"},
            "'Linear' ran 3 times (0 to 2), but `dump_step` selects 7",
            "",
        ),
        (
            {"dump_list": [{"model_name": "Linear", "layer": ["admm-op4"]}]},
            "no operator that ran matches a name in `dump_list`",
            "dump_list.layer: 'admm-op4' is not an operator or module that ran; nearest: 'addmm-op",
        ),
    ],
)
def test_the_reasons_of_an_acl_json_are_in_its_own_words(
    dump: dict[str, Any], reason: str, warning: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(ENDING)
    name = _acl(tmp_path, **dump).name
    done = opdump("run", "-c", name, "--strict", "train.py", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert reason in done.stderr
    assert warning in done.stderr
    for key in ("iteration", "kernels"):
        assert key not in done.stderr


def test_an_overflow_dump_without_an_overflow_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ENDING)
    name = _acl(tmp_path, dump_debug="on").name
    done = opdump("run", "-c", name, "--strict", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "no overflow" in done.stderr


FORKING = """
import multiprocessing


def train():
    import torch

    net = torch.nn.Linear(2, 1)
    net(torch.ones(1, 2)).sum().backward()


process = multiprocessing.get_context("fork").Process(target=train)
process.start()
process.join()
"""


def test_a_program_whose_children_captured_something_captured_something(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(FORKING)
    name = write_config(tmp_path).name
    done = opdump("run", "-c", name, "--strict", "parent.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "nothing was captured" not in done.stderr
    assert re.match(r"opdump: \d+ operators ran: \d+ captured", done.stderr)
