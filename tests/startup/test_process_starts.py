"""What is known about a process before it starts, and the state that the processes of a run share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from opdump.capturing.family import Family
from opdump.interpreter.process_starts import Start
from opdump.plan import DumpPlan

WATCHED = """
import os, subprocess, sys
from opdump.interpreter.process_starts import watch_starts

def told(start):
    print(start.kind, start.is_python, start.finds_the_run, os.path.basename(start.file), flush=True)

watch_starts(told)
with_it = {**os.environ, "OPDUMP_FAMILY": "here"}
nothing = [sys.executable, "-c", ""]
def replaced():
    os.execve("/bin/sh", ["sh", "-c", "true"], {b"OPDUMP_FAMILY": b"here"})

def forked(work):
    process = os.fork()
    if process == 0:
        work()
        os._exit(0)
    os.waitpid(process, 0)
"""


@pytest.mark.parametrize("compiled", [True, False])
def test_every_way_of_starting_a_process_is_reported_once(tmp_path: Path, compiled: bool) -> None:
    lines = {
        "subprocess.run(nothing)": ["started True True PYTHON"],
        "subprocess.run(nothing, env={})": ["started True False PYTHON"],
        "subprocess.run(nothing, env=with_it)": ["started True True PYTHON"],
        "subprocess.run(nothing, close_fds=False, env={})": ["started True False PYTHON"],
        "subprocess.run(['true'], env={'PATH': os.environ['PATH']})": ["started False False true"],
        "subprocess.run('python3 -c pass', shell=True, env=with_it)": ["started True True sh"],
        "os.waitpid(os.posix_spawn(sys.executable, nothing, {}), 0)": ["started True False PYTHON"],
        "os.system('true')": ["started False True "],
        "forked(int)": ["forked True True "],
        "forked(replaced)": ["forked True True ", "replaced False True sh"],
        "subprocess.run([b'/bin/true'], env={b'OPDUMP_FAMILY': b''})": ["started False True true"],
        "try: subprocess.run([1, 2])\nexcept TypeError: pass": [],
        "import multiprocessing as m; p = m.get_context('spawn').Process(target=int); p.start(); p.join()": [
            "started True True ",
            "started True True ",
        ],
    }
    body = "\n".join(f"print({number}, flush=True)\n{line}" for number, line in enumerate(lines))
    first = "" if compiled else "import sys; sys.modules['opdump.interpreter._native'] = None"
    (tmp_path / "program.py").write_text(f"{first}\n{WATCHED}\nif __name__ == '__main__':\n    exec({body!r})\n")
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    python = Path(sys.executable).name
    expected = [
        text.replace("PYTHON", python) for number, told in enumerate(lines.values()) for text in [str(number), *told]
    ]
    # multiprocessing loads two such modules for this.
    assert (done.stderr, done.stdout.splitlines()) == ("", expected)


def test_no_other_event_reaches_the_hook() -> None:
    pytest.importorskip("opdump.interpreter._native", reason="installed without a compiler")
    told = """
import os, sys
from opdump.interpreter._native import add_audit_hook
seen = []
add_audit_hook(lambda event, arguments: seen.append((event, arguments)), ("os.fork", "os.system"))
id(seen), sys._getframe(), os.system("true")
assert seen == [("os.system", (b"true",))], seen
def refuse(event, arguments): raise PermissionError(event)
add_audit_hook(refuse, ("os.system",))
try: os.system("true")
except PermissionError as error: print(error)
"""
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout) == ("", "os.system\n")


@pytest.mark.parametrize(
    ("command", "finds_the_run", "words"),
    [
        (("python3", "train.py"), True, ""),
        (("ls", "-l"), False, ""),
        (("python3", "train.py"), False, "OPDUMP_FAMILY"),
        (("nice", "-n", "5", "/opt/bin/python", "train.py"), False, "OPDUMP_FAMILY"),
        (("sh", "-c", "cd there && python3 train.py"), False, "OPDUMP_FAMILY"),
    ],
)
def test_what_cannot_be_followed_says_why(command: tuple[str, ...], finds_the_run: bool, words: str) -> None:
    obstacle = Start("started", command, command[0], finds_the_run).obstacle
    assert words in obstacle
    assert bool(words) == bool(obstacle)


def test_a_script_of_python_is_python(tmp_path: Path) -> None:
    for name, first, expected in (("torchrun", "#!/usr/bin/env python3", True), ("build", "#!/bin/sh", False)):
        script = tmp_path / name
        script.write_text(f"{first}\n")
        script.chmod(0o755)
        assert Start("started", (str(script), "train.py"), str(script), finds_the_run=False).is_python is expected


WORKS = """
import os, sys
from pathlib import Path
from opdump.capturing.family import Family
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


def test_two_processes_never_take_the_same_number_after_the_numbers_are_lost(tmp_path: Path) -> None:
    family = Family.begin(DumpPlan(path=tmp_path), {"rank": 0})
    family.end()
    assert family.own_number() == 100_000_000 + os.getpid()
