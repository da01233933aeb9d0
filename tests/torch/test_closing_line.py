"""The last lines of a run and its warnings: the counts are those on the disk, and the next command shows what was found."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import opdump
from opdump.capturing.family import ChildReport
from opdump.commands import main
from opdump.plan import KernelPattern, StepSet
from opdump.reports.completeness import closing_lines, completeness_json
from opdump.verdict import Verdict
from tests.cli.json_shapes import mistakes
from tests.cli.programs import opdump as command

MODES: dict[str, dict[str, Any]] = {
    "tensors": {},
    "statistics": {"saved_data": "statistic"},
    "both": {"saved_data": "full"},
    "arguments": {"save_kernel_args": True},
    "newer names": {"layout": "mindspore-2.10", "saved_data": "full"},
    "asynchronous": {"layout": "mindspore-async", "file_format": "npy", "saved_data": "full"},
    "asynchronous, whole files": {"layout": "mindspore-async", "file_format": "bin"},
    "asynchronous, overflow": {
        "layout": "mindspore-async",
        "file_format": "bin",
        "captures": "overflow",
        "op_debug_mode": 3,
    },
    "acl": {"layout": "acl", "file_format": "bin"},
    "acl, statistics": {"layout": "acl", "saved_data": "statistic"},
    "overflow": {"captures": "overflow", "op_debug_mode": 3},
    "sampled": {"saved_data": "full", "sample_num": 3},
    "one step": {"steps": StepSet.of(1)},
}


def _train(root: Path, mode: str) -> opdump.CaptureReport:
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    optimizer = torch.optim.Adam(net.parameters())
    with opdump.capture(opdump.DumpPlan(path=root, **MODES[mode])) as dump:
        for _ in range(3):
            optimizer.zero_grad()
            (net(torch.ones(3, 4)).sum() / 0).backward()
            optimizer.step()
    assert dump.report is not None
    return dump.report


def on_disk(root: Path) -> dict[Path, tuple[int, int]]:
    """When each file was written, and its size."""
    found = {path: path.stat() for path in root.rglob("*") if path.is_file()}
    return {path: (facts.st_mtime_ns, facts.st_size) for path, facts in found.items()}


@pytest.mark.parametrize("mode", MODES)
def test_files_and_bytes_are_those_on_disk(mode: str, tmp_path: Path) -> None:
    report, files = _train(tmp_path, mode), on_disk(tmp_path)
    assert report.files == len(files), sorted(path.name for path in files)
    assert report.bytes == sum(size for _, size in files.values())
    assert f"{len(files):,} files" in "\n".join(closing_lines(report))
    assert mistakes("run", json.loads(completeness_json(report))) == []


@pytest.mark.parametrize("mode", MODES)
def test_a_second_run_into_the_same_directory_counts_only_its_own_files(mode: str, tmp_path: Path) -> None:
    _train(tmp_path, mode)
    before = on_disk(tmp_path)
    report = _train(tmp_path, mode)
    written = {path: facts for path, facts in on_disk(tmp_path).items() if before.get(path) != facts}
    assert report.files == len(written), sorted(path.name for path in written)
    assert report.bytes == sum(size for _, size in written.values())


NAN = Verdict(kind="nan", step=7, op_name="Default/net-Net/fc-Linear/addmm-op3", op_type="aten::addmm", tensors=9)


def _report(**facts: Any) -> opdump.CaptureReport:
    usual: dict[str, Any] = {"executed": 10, "captured": 8, "files": 3, "bytes": 2500, "steps": (6, 7), "seconds": 2.0}
    return opdump.CaptureReport(path=Path("/d"), rank_id=0, **{**usual, **facts})


@pytest.mark.parametrize(
    ("facts", "lines"),
    [
        (
            {"verdict": NAN, "skipped": {"view": 2}, "capture_seconds": 0.5},
            [
                "10 operators ran: 8 captured, 2 skipped; steps 6-7, 2.50 kB in 3 files, 2.00 s (33 % overhead)",
                "first NaN: step 7, aten::addmm (Default/net-Net/fc-Linear/addmm-op3)",
                "next: opdump show /d --op addmm-op3 --step 7",
            ],
        ),
        (
            {"tensors_skipped": {"no storage": 4}, "fired": tuple("12345")},
            [
                "10 operators ran: 8 captured; missing: 4 no storage; steps 6-7, 2.50 kB in 3 files, 2.00 s; written for 1, 2, 3, ...",
                "next: opdump show /d",
            ],
        ),
        (
            {"verdict": NAN, "steps": (*range(0, 40, 2),), "capture_seconds": 0.001},
            [
                "10 operators ran: 8 captured; 20 steps from 0 to 38, 2.50 kB in 3 files, 2.00 s (1 % overhead)",
                "first NaN: step 7, aten::addmm (Default/net-Net/fc-Linear/addmm-op3)",
                "next: opdump show /d",
            ],
        ),
        (
            {
                "executed": 0,
                "captured": 0,
                "bytes": 0,
                "files": 0,
                "steps": (),
                "children": (ChildReport(process=5, end="ended", rank_id=3, executed=4, captured=4, verdict=NAN),),
            },
            [
                "4 operators ran: 4 captured; 0 B in 0 files, 2.00 s",
                "rank 3, first NaN: step 7, aten::addmm (Default/net-Net/fc-Linear/addmm-op3)",
                "next: opdump show /d --op addmm-op3 --step 7 --rank 3",
            ],
        ),
    ],
    ids=["a finding", "gaps and triggers", "a step that was not kept", "child process"],
)
def test_a_run_ends_with_its_counts_the_verdict_and_the_next_command(facts: dict[str, Any], lines: list[str]) -> None:
    assert closing_lines(_report(**facts)) == [f"opdump: {line}" for line in lines]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ring": 2, "saved_data": "statistic"},
        {"captures": "overflow"},
        {"kernels": (KernelPattern.parse("div"),)},
        {"layout": "acl"},
        {"layout": "packed"},
    ],
    ids=str,
)
def test_the_next_command_shows_the_operator_that_was_found(settings: dict[str, Any], tmp_path: Path) -> None:
    with opdump.capture(opdump.DumpPlan(path=tmp_path / "d", **settings)) as dump:
        for step in range(3):
            x = torch.ones(2) * 2 - 2
            (torch.ones(2) / (x + (step != 1))).sum()
            dump.step()
    assert dump.report is not None
    command = closing_lines(dump.report)[-1].removeprefix("opdump: next: opdump ").split()
    assert command[2] == "--op"
    shown = CliRunner().invoke(main, command)
    assert shown.exit_code == 0, shown.output
    assert "inf" in shown.output


def _messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "opdump"]


def _backward() -> None:
    net = torch.nn.Linear(2, 2)
    net(torch.ones(1, 2)).sum().backward()


@pytest.mark.parametrize("way", ["block", "start and stop", "block that raises"])
def test_a_name_that_matches_nothing_is_logged_once(way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings: dict[str, Any] = {"path": tmp_path, "dump_mode": 1, "kernels": ["addmm", "Default/nowhere-op1"]}
    with caplog.at_level(logging.WARNING, "opdump"):
        if way == "block":
            with opdump.capture(**settings) as dump:
                _backward()
            report = dump.report
        elif way == "start and stop":
            opdump.start(**settings)
            _backward()
            report = opdump.stop()
        else:
            with suppress(ZeroDivisionError), opdump.capture(**settings) as dump:
                _backward()
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
        _backward()
    assert dump.report is not None
    assert dump.report.nothing is not None
    assert f"nothing was captured: {dump.report.nothing.reason}" in _messages(caplog)


def test_a_capture_that_lacks_nothing_is_silent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "opdump"), opdump.capture(path=tmp_path):
        _backward()
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
