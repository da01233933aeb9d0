"""Temporary directories outside of the dump: the next process removes those of killed processes, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from opdump.interpreter.leftovers import this_process
from opdump.sink.outside import temporary_directory

MAKES = """
import os, sys
from pathlib import Path
from opdump.sink.outside import temporary_directory
folder = temporary_directory("kind", Path(sys.argv[1]))
(folder / "file").write_text("1")
print(folder, flush=True)
sys.stdin.read()
"""


def started(where: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has created a directory, and waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", MAKES, str(where)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_directories_of_dead_processes_are_cleared_and_no_others(tmp_path: Path) -> None:
    killed, left = started(tmp_path)
    working, used = started(tmp_path)
    with killed, working:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        place, number, start = this_process().split("-")
        others = [
            tmp_path / f"opdump-kind--{place[::-1]}-{killed.pid}-{start}--of_another_system",
            tmp_path / f"opdump-other--{left.name.split('--')[1]}--of_another_kind",
            tmp_path / "opdump-kind--without_a_process",
            tmp_path / f"opdump-kind--{left.name.split('--')[1]}--1--2",
        ]
        reused = tmp_path / f"opdump-kind--{place}-{number}-{int(start) - 1}--of_a_process_with_this_id_before"
        target = tmp_path / "target"
        for folder in (*others, reused, target):
            folder.mkdir()
        link = tmp_path / f"opdump-kind--{left.name.split('--')[1]}--link"
        link.symlink_to(target)
        own = temporary_directory("kind", tmp_path)
        assert (left.exists(), reused.exists()) == (False, False)
        assert all(folder.is_dir() for folder in (own, used, *others, target, link))
        assert own.stat().st_mode & 0o777 == 0o700
        assert working.stdin is not None
        working.stdin.close()


def test_a_directory_of_a_dead_process_stays_as_long_as_others_use_it(tmp_path: Path) -> None:
    process, left = started(tmp_path)
    with process:
        process.kill()
        process.wait()
        temporary_directory("kind", tmp_path, is_in_use=lambda folder: (folder / "file").exists())
        assert left.is_dir()
        (left / "file").unlink()
        temporary_directory("kind", tmp_path, is_in_use=lambda folder: (folder / "file").exists())
        assert not left.exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="must create a directory of another user")
def test_a_directory_of_another_user_stays(tmp_path: Path) -> None:
    process, left = started(tmp_path)
    with process:
        process.kill()
        process.wait()
        os.chown(left, 12345, -1)
        temporary_directory("kind", tmp_path)
        assert left.is_dir()


FORKS = """
import os, sys
from pathlib import Path
from opdump.sink.outside import remove_own, temporary_directory
folder = temporary_directory("kind", Path(sys.argv[1]))
if (child := os.fork()) == 0:
    remove_own(folder)
    os._exit(0)
os.waitpid(child, 0)
print(folder.is_dir())
remove_own(folder)
print(folder.is_dir())
"""


def test_a_forked_process_leaves_the_directory_of_its_parent(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORKS, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
