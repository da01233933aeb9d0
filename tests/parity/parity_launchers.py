"""Trainings started by a launcher, two processes with gloo: each is a rank of one run, and the losses do not change."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

import opdump
from tests.cli.programs import write_config
from tests.parity import peers

# Both programs sleep at the end: a Gloo thread needs the interpreter to release the last collective, and a process that has exited by then
# is aborted, with or without a capture.

ACCELERATE = """
import sys
import time
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.arange(32.0).reshape(8, 4) / 32, batch_size=2)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for batch in data:
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    accelerator.backward(loss)
    optimizer.step()
sys.stdout.write(f"{accelerator.process_index} of {accelerator.num_processes}: {loss.item().hex()}\\n")
sys.stdout.flush()
accelerator.end_training()
time.sleep(1)
"""

PLAIN = """
import sys
import time
import torch
import torch.distributed as dist

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(x)

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    optimizer.zero_grad()
    loss = model(torch.ones(5, 4) * (dist.get_rank() + 1)).square().mean()
    loss.backward()
    optimizer.step()
sys.stdout.write(f"{dist.get_rank()} of {dist.get_world_size()}: {loss.item().hex()}\\n")
sys.stdout.flush()
dist.destroy_process_group()
time.sleep(1)
"""


def _launched(folder: Path, kind: str, *before: str, **environ: str) -> tuple[list[str], str]:
    """The output lines of the two ranks, in order, and the last line of standard error."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    if kind == "accelerate":
        launcher = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
        launcher += ["--main_process_port", port, "train.py"]
    else:
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port, "train.py"]
    inherited = {key: os.environ[key] for key in ("PATH", "HOME", "TMPDIR") if key in os.environ}
    done = subprocess.run(
        [str(peers.PROGRAMS), *before, *launcher],
        cwd=folder,
        env={**inherited, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines()), done.stderr.splitlines()[-1] if done.stderr else ""


def _configure(folder: Path, config: str) -> None:
    write_config(folder, saved_data="statistic", support_device=[0, 1])
    (folder / "dump").mkdir()
    dump = {
        "dump_path": str(folder / "dump"),
        "dump_mode": "all",
        "dump_level": "op",
        "dump_list": [{"model_name": "Net"}],
    }
    (folder / "acl.json").write_text(json.dumps({"dump": dump}))
    assert (folder / config).exists()


@pytest.mark.parametrize(
    ("kind", "config"), [("accelerate", "data_dump.json"), ("torchrun", "data_dump.json"), ("torchrun", "acl.json")]
)
def test_processes_of_a_launcher_are_ranks_of_one_run(tmp_path: Path, kind: str, config: str) -> None:
    (tmp_path / "train.py").write_text(ACCELERATE if kind == "accelerate" else PLAIN)
    _configure(tmp_path, config)
    expected, _ = _launched(tmp_path, kind)
    assert [line[:6] for line in expected] == ["0 of 2", "1 of 2"]
    reports: list[dict[str, Any]] = []
    for number, way in enumerate(("OPDUMP_START", "opdump run")):
        options = f"-c {config} --json --path {tmp_path / f'dump{number}'}"
        (tmp_path / f"dump{number}").mkdir()
        if way == "opdump run":
            told = _launched(tmp_path, kind, "-m", "opdump", "run", *options.split())
        else:
            told = _launched(tmp_path, kind, OPDUMP_START=options)
        assert told[0] == expected
        reports.append(json.loads(told[1]))
    for number, report in enumerate(reports):
        assert report["warnings"] == []
        assert [(child["rank"], child["end"]) for child in report["children"]] == [(0, "ended"), (1, "ended")]
        assert [child["captured"] for child in report["children"]] == [
            child["captured"] for child in reports[0]["children"]
        ]
        assert all(child["captured"] for child in report["children"])
        place = tmp_path / f"dump{number}"
        # A device names the directory of a run by the second in which a process began, and ranks may begin in different seconds.
        places = sorted(place.iterdir()) if config == "acl.json" else [place]
        catalogs = [opdump.open(each) for each in places]
        assert sorted(rank for catalog in catalogs for rank in catalog.ranks) == [0, 1]
        assert not any(catalog.problems for catalog in catalogs)
