"""`opdump run train.py`: without a config, options select what is recorded, and the run ends with its verdict."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import opdump as library
from tests.cli.programs import opdump

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


def test_what_a_child_process_found_is_told_by_the_first(tmp_path: Path) -> None:
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
