"""A truncated tensor file beside an index with its statistics: `check` and `show` report it, and exit as for any
damage.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import opdump
from opdump.commands import main
from opdump.index.values import FilePayload
from opdump.layouts.ascend.reader import DumpPayload

pytest.importorskip("torch")

LAYOUTS: dict[str, dict[str, Any]] = {
    "sync": {"layout": "mindspore-2.3", "saved_data": "full"},
    "async": {"layout": "mindspore-async", "file_format": "bin", "saved_data": "full"},
    "async npy": {"layout": "mindspore-async", "file_format": "npy", "saved_data": "full"},
    "acl": {"layout": "acl", "file_format": "bin", "dialect": "acl", "saved_data": "full"},
    "acl tensors": {"layout": "acl", "file_format": "bin", "dialect": "acl"},
}
PROGRAM = """
import json, sys
from pathlib import Path
import torch, opdump
from opdump.plan import DumpPlan
for name, settings in json.loads(sys.argv[2]).items():
    with opdump.capture(DumpPlan(path=Path(sys.argv[1]) / name, **settings)) as dump:
        for step in range(2):
            (torch.full((30, 30), 0.5).exp() + 1).sum()
            dump.step()
"""


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("dumps")
    subprocess.run([sys.executable, "-c", PROGRAM, str(root), json.dumps(LAYOUTS)], check=True, timeout=900)
    return root


def _cut(root: Path) -> Path:
    """Remove the last bytes of the file of the output of `exp` in step 1."""
    record = next(
        each for each in opdump.open(root).tensors(step=1) if each.op.op_type == "exp" and each.io == "output"
    )
    assert isinstance(record.payload, FilePayload | DumpPayload)
    file = record.payload.path
    file.chmod(0o600)
    os.truncate(file, file.stat().st_size - 100)
    return file


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_check_and_show_report_a_file_that_is_cut_off(layout: str, dumps: Path) -> None:
    root = dumps / layout
    for arguments in (["check"], ["show"], ["show", "--op", "exp"]):
        assert _run(arguments[0], str(root), *arguments[1:]).exit_code == 0
    file = _cut(root)
    checked = _run("check", str(root))
    assert checked.exit_code == 2
    assert checked.stderr.count(f"problem: {file}") == 1
    assert "cut off" in checked.stderr
    found = json.loads(_run("check", str(root), "--json").stdout)
    assert [str(file) in problem for problem in found["problems"]] == [True]
    assert found["findings"] == []
    # Step 0 is complete.
    assert _run("check", str(root), "--step", "0").exit_code == 0
    for arguments in (["--step", "1"], ["--op", "exp"], ["--json"]):
        shown = _run("show", str(root), *arguments)
        assert shown.exit_code == 1, arguments
        assert shown.stderr.count(f"problem: {file}") == 1
    told = json.loads(_run("show", str(root), "--json").stdout)["problems"]
    assert [str(file) in problem for problem in told] == [True]
