"""`set_dump` in a program that was started by the plain command, and in its children: a mark counts in the process that
makes it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import opdump as package
from tests.cli.programs import write_config
from tests.startup.test_plain_command import figures, plain

PROGRAM = """
import multiprocessing, sys
import opdump, torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Bilinear(4, 4, 2)
    def forward(self, x):
        x = self.first(x).relu()
        return self.second(x, x)

def train(mark):
    net = Net()
    mark(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        net(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

def mark_first(net):
    opdump.set_dump(net.first)

def mark_second(net):
    opdump.set_dump(net.second)

if __name__ == "__main__":
    for kind in ("fork", "spawn"):
        process = multiprocessing.get_context(kind).Process(target=train, args=(mark_second,))
        process.start()
        process.join()
    train(mark_first)
"""


@pytest.mark.torch
def test_a_mark_counts_in_the_process_that_makes_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    write_config(tmp_path, dump_mode=2, saved_data="statistic")
    done = plain("train.py", cwd=tmp_path, OPDUMP_START="-c data_dump.json --json")
    assert done.returncode == 0, done.stderr
    assert figures(done)["warnings"] == []
    catalog = package.open(tmp_path / "dump")
    assert len(catalog.ranks) == 3
    for rank in catalog.ranks:
        for step in (0, 1):
            scopes = {
                op.op_name.split("/")[-2] for op in catalog.ops(step=step, rank=rank) if "/network-" in op.op_name
            }
            assert scopes == {"first-Linear" if rank == 0 else "second-Bilinear"}, (rank, step)
