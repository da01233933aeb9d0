"""The memory that the program leaves is too small for the copy of a tensor: the training continues, or stops if `on_error` says so.

The limit is the system's (RLIMIT_AS), in a separate process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import opdump
from tests.torch.killed_programs import LAYOUTS

PROGRAM = """
import json, resource, sys
from pathlib import Path
import torch
import opdump
from opdump.errors import DumpPathError
from opdump.plan import DumpPlan

torch.set_num_threads(1)
large = torch.ones(2**26)
weight = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)

def train(limited):
    losses = []
    for step in range(4):
        if step == 2 and limited:
            size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + 2**27, resource.RLIM_INFINITY))
        optimizer.zero_grad()
        loss = (weight * (large.amax() if step == 2 else 2.0)).exp().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses

plain = train(False)
with torch.no_grad():
    weight.fill_(1)
settings = json.loads(sys.argv[2])
raised, losses = "", []
try:
    with opdump.capture(DumpPlan(path=Path(sys.argv[1]), **settings), on_error=sys.argv[3]) as dump:
        losses = train(True)
except DumpPathError as error:
    raised = str(error)
report = dump.report
counted = report.captured + sum(report.skipped.values())
print(json.dumps([losses == plain, raised, report.failure, report.skipped, report.executed == counted]))
"""


def _limited(root: Path, layout: str, on_error: str) -> Any:
    settings = json.dumps(LAYOUTS[layout])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(root), settings, on_error],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return [*json.loads(done.stdout), done.stderr]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the size of a process is read from /proc")
@pytest.mark.parametrize("layout", ["sync-2.3", "async", "acl"])
def test_a_training_goes_on_where_the_copy_of_a_tensor_does_not_fit(tmp_path: Path, layout: str) -> None:
    root = tmp_path / "dump"
    is_same, raised, failure, skipped, counts_agree, told = _limited(root, layout, "continue")
    assert is_same
    assert raised == ""
    assert "memory" in failure
    assert "dump less" in failure
    assert told.count(failure) == 1
    assert counts_agree
    assert skipped["not written"]
    catalog = opdump.open(root)
    assert catalog.steps[:2] == (0, 1)
    assert not any(run.complete for run in catalog.runs)
    for record in catalog.tensors(step=1):
        assert record.payload is None or record.payload.to_host().shape == record.shape


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the size of a process is read from /proc")
@pytest.mark.parametrize("layout", ["sync-2.3", "acl"])
def test_with_stop_the_want_of_memory_is_raised_by_its_name(tmp_path: Path, layout: str) -> None:
    _, raised, failure, _, counts_agree, _ = _limited(tmp_path / "dump", layout, "stop")
    assert "memory" in raised
    assert failure == raised
    assert counts_agree
