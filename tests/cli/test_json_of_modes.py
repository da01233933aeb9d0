"""The JSON of each verb matches its documented shape for dumps of every layout and mode, and for incomplete dumps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from click.testing import CliRunner

import opdump
from opdump.commands import main
from tests.cli.json_shapes import mistakes
from tests.torch.test_closing_line import MODES

pytestmark = pytest.mark.torch


def _train(root: Path, mode: str) -> None:
    net = torch.nn.Linear(2, 2)
    with opdump.capture(opdump.DumpPlan(path=root, **MODES[mode])) as dump:
        for _ in range(2):
            (net(torch.ones(2, 2)).sum() / 0).backward()
            dump.step()


def _assert_shapes(root: Path, out: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for verb, *arguments in (
        ("show",),
        ("show", "--limit", "1"),
        ("check",),
        ("overflow",),
        ("convert", "--recursive", "-o", str(out)),
    ):
        done = CliRunner().invoke(main, [verb, str(root), *arguments, "--json"])
        assert done.exit_code in (0, 1, 2), done.output  # 2: a file could not be checked
        value = json.loads(done.stdout, parse_constant=_refuse)
        assert mistakes(verb, value) == []
        found.setdefault(verb, value)
    return found


def _refuse(constant: str) -> NoReturn:
    pytest.fail(f"{constant} is not valid JSON")


@pytest.mark.parametrize("mode", MODES)
def test_the_shapes_hold_over_every_mode(mode: str, tmp_path: Path) -> None:
    _train(tmp_path / "dump", mode)
    found = _assert_shapes(tmp_path / "dump", tmp_path / "out")
    assert found["show"]["operators"]
    assert (found["show"]["limit"], found["show"]["more"]) == (None, False)


def test_the_shapes_hold_over_a_dump_of_nothing(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path / "dump", iteration="9", framework="torch"):
        torch.ones(2).exp()
    assert _assert_shapes(tmp_path / "dump", tmp_path / "out")["show"]["operators"] == []


@pytest.mark.parametrize("mode", ["tensors", "asynchronous, whole files", "acl"])
def test_the_shapes_hold_over_files_that_are_cut_off_and_they_are_reported(mode: str, tmp_path: Path) -> None:
    _train(tmp_path / "dump", mode)
    dumped = (
        path
        for path in (tmp_path / "dump").rglob("*")
        if path.is_file() and path.name.startswith(("addmm", "Linear", "linear"))
    )
    files = [path for path in dumped if path.suffix != ".csv"]
    cut = max(files, key=lambda path: path.stat().st_size)
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    found = _assert_shapes(tmp_path / "dump", tmp_path / "out")
    assert any(found[verb]["problems"] for verb in ("show", "check")), cut


def test_the_shapes_hold_over_a_run_that_was_cut_off(tmp_path: Path) -> None:
    program = f"""
import os, torch, opdump
with opdump.capture(path={str(tmp_path / "dump")!r}) as dump:
    for _ in range(3):
        torch.ones(2).exp()
        dump.step()
    torch.ones(2).exp()
    os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    found = _assert_shapes(tmp_path / "dump", tmp_path / "out")
    assert found["show"]["runs"][0]["ended"] is None
