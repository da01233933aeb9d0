"""A rank starts child processes that inherit the variables with its number: they do not become a second process of that
rank.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import opdump as package
from tests.cli.programs import write_config
from tests.startup.test_children import TRAIN
from tests.startup.test_plain_command import figures, plain

pytestmark = pytest.mark.torch

# The launcher sets RANK for its processes, as torchrun does; each of them has child processes work before itself.
LAUNCHER = """
import os, subprocess, sys, torch
ranks = [subprocess.Popen([sys.executable, 'rank.py'], env={**os.environ, 'RANK': str(rank)}) for rank in range(2)]
print([rank.wait() for rank in ranks])
"""
RANK = f"""{TRAIN}
if __name__ == '__main__':
    joined(multiprocessing.get_context('fork').Process(target=train, args=(0, 1)))
    subprocess.run([sys.executable, '-c', 'import train; train.train(0, 1)'])
    train(0, 3)
"""


def test_a_rank_keeps_its_number_and_what_it_starts_gets_others(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "launch.py").write_text(LAUNCHER)
    write_config(tmp_path, saved_data="statistic")
    done = plain("launch.py", cwd=tmp_path, OPDUMP_START="-c data_dump.json --json")
    assert (done.returncode, done.stdout) == (0, "[0, 0]\n"), done.stderr
    report = figures(done)
    assert report["warnings"] == []
    catalog = package.open(tmp_path / "dump")
    assert catalog.ranks == (0, 1, 10_000, 10_001, 10_002, 10_003)
    found = {rank: {execution.op.step for execution in catalog.executions(rank=rank)} for rank in catalog.ranks}
    assert found == {rank: {0, 1, 2} if rank < 2 else {0} for rank in catalog.ranks}
