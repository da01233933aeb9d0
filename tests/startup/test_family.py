"""The shared state of a run's processes if some are killed, outlive the first, or come after it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from opdump.capturing.children import Family
from opdump.plan import DumpPlan

WORKS = """
import os, sys
from pathlib import Path
from opdump.capturing.children import Family
from opdump.plan import DumpPlan
if sys.argv[1] == "first":
    family = Family.begin(DumpPlan(path=Path("dump")), {"rank": 0})
else:
    family = Family.named(sys.argv[2])
    family.note("token", {})
print(family.directory, flush=True)
sys.stdin.read()
if sys.argv[1] == "child":
    family.note("token", {"end": "ended"})
    family.left()
"""


def started(tmp_path: Path, *arguments: str) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKS, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def kill(process: subprocess.Popen[str]) -> None:
    with process:
        process.send_signal(signal.SIGKILL)


def end(process: subprocess.Popen[str]) -> None:
    with process:
        process.communicate("")


def test_the_next_run_clears_what_a_killed_one_left_once_its_children_are_gone(tmp_path: Path) -> None:
    first, directory = started(tmp_path, "first")
    child, _ = started(tmp_path, "child", str(directory))
    kill(first)
    next_one, _ = started(tmp_path, "first")
    assert directory.is_dir(), "a child of that run still takes numbers there"
    kill(child)
    kill(next_one)
    last, own = started(tmp_path, "first")
    assert list(tmp_path.iterdir()) == [own]
    kill(last)


def test_the_last_child_of_a_run_that_has_ended_removes_what_they_shared(tmp_path: Path) -> None:
    family = Family.begin(DumpPlan(path=tmp_path), {"rank": 0})
    children = [started(tmp_path, "child", str(family.directory))[0] for _ in range(2)]
    family.end()
    for child in children:
        assert family.directory.is_dir()
        end(child)
    assert not family.directory.exists()


def test_the_last_child_of_a_killed_run_removes_what_they_shared(tmp_path: Path) -> None:
    first, directory = started(tmp_path, "first")
    child, _ = started(tmp_path, "child", str(directory))
    kill(first)
    end(child)
    assert list(tmp_path.iterdir()) == []


def test_where_nobody_keeps_the_numbers_any_more_no_two_processes_take_the_same(tmp_path: Path) -> None:
    family = Family.begin(DumpPlan(path=tmp_path), {"rank": 0})
    family.end()
    assert family.own_number() == 100_000_000 + os.getpid()
