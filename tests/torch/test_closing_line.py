"""The numbers of files and bytes in the closing line are those on the disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import opdump
from opdump.plan import StepSet
from opdump.reports.completeness import completeness_json, completeness_line
from tests.cli.json_shapes import mistakes

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
    assert f"{len(files):,} files" in completeness_line(report)
    assert mistakes("run", json.loads(completeness_json(report))) == []


@pytest.mark.parametrize("mode", MODES)
def test_a_second_run_into_the_same_directory_counts_only_its_own_files(mode: str, tmp_path: Path) -> None:
    _train(tmp_path, mode)
    before = on_disk(tmp_path)
    report = _train(tmp_path, mode)
    written = {path: facts for path, facts in on_disk(tmp_path).items() if before.get(path) != facts}
    assert report.files == len(written), sorted(path.name for path in written)
    assert report.bytes == sum(size for _, size in written.values())
