"""`opdump convert` reads the device-like dump files that opdump writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import opdump
from opdump.commands import main


@pytest.mark.parametrize(
    "settings",
    [
        {"layout": "acl", "file_format": "bin"},
        {"layout": "mindspore-async", "file_format": "bin"},
    ],
    ids=["acl", "asynchronous"],
)
def test_an_own_dump_is_converted_and_what_is_no_dump_file_is_counted(settings: dict[str, Any], tmp_path: Path) -> None:
    root = tmp_path / "dump"
    with opdump.capture(opdump.DumpPlan(path=root, **settings)):
        torch.nn.Linear(2, 3)(torch.ones(1, 2)).sum().backward()
    (root / "ge_proto_00002_Build.txt").write_text('graph {\n  name: "net"\n}\n')
    for name in ("index.sqlite-journal", "model.onnx", "notes.txt", ".hidden", "train.py"):
        (root / name).write_bytes(b"\x0a")
    (root / "database").write_bytes(b"SQLite format 3\0" + bytes(84))
    assert list(root.rglob("index.sqlite"))
    done = CliRunner().invoke(main, ["convert", str(root), "-o", str(tmp_path / "out"), "--recursive", "--json"])
    said = json.loads(done.output)
    assert said["failures"] == []
    assert done.exit_code == 0
    assert said["tensors"] > 0
    passed_over = {Path(path).name for path in said["skipped"]}
    assert {"index.sqlite", "ge_proto_00002_Build.txt", "database", ".hidden"} <= passed_over
    every = {path for path in root.rglob("*") if path.is_file()}
    assert len(every) == said["converted"] + len(said["skipped"])
    told = CliRunner().invoke(main, ["convert", str(root), "-o", str(tmp_path / "again"), "--recursive"])
    assert f"{len(said['skipped'])} files skipped" in told.output
