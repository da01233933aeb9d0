"""`opdump run` if nothing is captured: the true reason, and the exit code of `--strict`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.programs import opdump, write_config

pytestmark = pytest.mark.torch

TRAIN = """
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
        (TRAIN, {"iteration": "5-8"}, "the program ended steps 0 to 2, but `iteration` selects 5-8"),
        (TRAIN, {"dump_mode": 1, "kernels": ["conv3d"]}, "no operator that ran matches a name in `kernels`"),
        (TRAIN, {"dump_mode": 2}, "nothing is marked; call opdump.set_dump(net)"),
        ("print('no framework here')\n", {}, "the program imported no PyTorch"),
        ("def main():\n    import torch\n\n\nmain()\n", {}, "no operator of PyTorch ran"),
        ("import torch\ntorch.empty(3).view(1, 3)\n", {}, "only operators that compute nothing ran (allocation, view)"),
    ],
)
def test_the_true_reason_is_told_and_strict_is_an_error(
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
    (tmp_path / "train.py").write_text(TRAIN)
    name = _acl(tmp_path, **dump).name
    done = opdump("run", "-c", name, "--strict", "train.py", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert reason in done.stderr
    assert warning in done.stderr
    for key in ("iteration", "kernels"):
        assert key not in done.stderr


def test_an_overflow_dump_without_an_overflow_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
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
