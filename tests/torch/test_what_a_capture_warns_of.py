"""A capture from Python logs the warnings that `opdump run` prints."""

from __future__ import annotations

import logging
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import opdump
from tests.cli.programs import opdump as command


def _messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "opdump"]


def _train() -> None:
    net = torch.nn.Linear(2, 2)
    net(torch.ones(1, 2)).sum().backward()


@pytest.mark.parametrize("way", ["block", "start and stop", "block that raises"])
def test_a_name_that_matches_nothing_is_logged_once(way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings: dict[str, Any] = {"path": tmp_path, "dump_mode": 1, "kernels": ["addmm", "Default/nowhere-op1"]}
    with caplog.at_level(logging.WARNING, "opdump"):
        if way == "block":
            with opdump.capture(**settings) as dump:
                _train()
            report = dump.report
        elif way == "start and stop":
            opdump.start(**settings)
            _train()
            report = opdump.stop()
        else:
            with suppress(ZeroDivisionError), opdump.capture(**settings) as dump:
                _train()
                raise ZeroDivisionError
            report = dump.report
    assert report is not None
    assert len([text for text in report.warnings if "Default/nowhere-op1" in text]) == 1
    assert [text for text in _messages(caplog) if text in report.warnings] == list(report.warnings)


def test_why_nothing_was_captured_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING, "opdump"),
        opdump.capture(path=tmp_path, dump_mode=1, kernels=["nowhere"]) as dump,
    ):
        _train()
    assert dump.report is not None
    assert dump.report.nothing is not None
    assert f"nothing was captured: {dump.report.nothing.reason}" in _messages(caplog)


def test_a_capture_that_lacks_nothing_is_silent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "opdump"), opdump.capture(path=tmp_path):
        _train()
    assert _messages(caplog) == []


def test_a_script_that_captures_itself_and_opdump_run_both_warn_once(tmp_path: Path) -> None:
    body = "import torch\ntorch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()\n"
    settings = f"path={str(tmp_path / 'dump')!r}, dump_mode=1, kernels=['addmm', 'Default/nowhere-op1']"
    (tmp_path / "own.py").write_text(f"import opdump\nopdump.start({settings})\n{body}")
    done = subprocess.run([sys.executable, "own.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Default/nowhere-op1") == 1
    (tmp_path / "plain.py").write_text(body)
    config = tmp_path / "data_dump.json"
    config.write_text(
        '{"common_dump_settings": {"dump_mode": 1, "path": "%s", "net_name": "Net", "iteration": "all", "input_output": 0,'
        '"kernels": ["addmm", "Default/nowhere-op1"], "support_device": [0]}, "e2e_dump_settings": {"enable": true}}'
        % (tmp_path / "other")
    )
    done = command("run", "-c", str(config), "plain.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Default/nowhere-op1") == 1
