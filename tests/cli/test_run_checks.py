"""`opdump run --check` and `--watch`: what is printed at the end of a run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.json_shapes import mistakes
from tests.cli.programs import opdump

pytestmark = pytest.mark.torch

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


def test_what_was_found_is_said_before_the_last_line_and_the_program_ends_as_it_would(tmp_path: Path) -> None:
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


def test_a_condition_that_is_none_is_told_before_the_program_starts(tmp_path: Path) -> None:
    done = run(tmp_path, "--watch", "gradient_vanish abs_mean_lt=1")
    assert done.returncode == 1
    assert "unknown condition 'gradient_vanish'; nearest: 'gradient_vanishing'" in done.stderr
    assert not (tmp_path / "dump").exists()
