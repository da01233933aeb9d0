"""A training of LeNet under `opdump run`: its bits, its recorded operators, and the same operators in graph mode."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import opdump
from opdump.graph import PYNATIVE

PROGRAM = Path(__file__).with_name("lenet.py")
_EXECUTED = re.compile(r"\] RunOp name (\w+)|\] (\w+) call start$", re.MULTILINE)
"""Lines of MindSpore's debug log for operators that run: from its single-operator graphs, and from its own kernels."""


def run(place: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=place,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )


def captured(place: Path, *options: str, mode: str = "pynative") -> str:
    """The output of the program; the dump is in `dump`."""
    return run(place, "-m", "opdump", "run", "--path", "dump", *options, str(PROGRAM), mode).stdout.split("\n")[0]


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pynative")
    plain = [run(place, str(PROGRAM)).stdout.strip() for _ in range(2)]
    assert plain[0] == plain[1], "the program itself returns different bits each time"
    assert captured(place, "--full", "--steps", "0-2") == plain[0]
    return place


def test_every_operator_that_mindspore_logs_is_recorded(dumped: Path) -> None:
    log = run(dumped, str(PROGRAM), GLOG_v="0")
    executed = Counter(one or other for one, other in _EXECUTED.findall(log.stdout + log.stderr))
    recorded = Counter(op.op_type for op in opdump.open(dumped / "dump").ops(graph=PYNATIVE))
    found = sum((executed & recorded).values())
    print(f"{found} of {executed.total()} executed operators: {found / executed.total():.1%}; {dict(executed)}")
    assert executed.total() > 100
    assert recorded == executed


def test_the_operators_of_graph_mode_are_there_under_the_same_names_with_the_same_bits(
    dumped: Path, tmp_path: Path
) -> None:
    captured(tmp_path, "--full", "--steps", "0-1", mode="graph")
    ours, theirs = (
        {(op.op_name, op.occurrence): op for op in opdump.open(place / "dump").ops(step=0)}
        for place in (dumped, tmp_path)
    )
    names = [key for key in theirs if key[0].startswith("Default/network")]
    assert len(names) == 16
    for key in names:
        one, other = ours[key].outputs[0], theirs[key].outputs[0]
        assert one.numpy().tobytes() == other.numpy().tobytes(), key
