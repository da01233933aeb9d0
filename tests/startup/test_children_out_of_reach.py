"""Processes that are not plain children of a captured one: without the run's variable, started before a framework, or
by exec.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import opdump as package
from tests.cli.programs import python, write_config
from tests.startup.test_children import TRAIN, assert_is_readable, run
from tests.startup.test_plain_command import figures, plain

pytestmark = pytest.mark.torch


def test_processes_that_cannot_be_followed_are_counted_and_told(tmp_path: Path) -> None:
    body = """
    said = [sys.executable, '-c', 'import os; print(sorted(os.environ))']
    for command, environ in (
        (said, {}), (said, {'A': 'b'}), (['env', *said], {'PATH': os.environ['PATH']}), (['true'], {}),
    ):
        found = subprocess.run(command, env=environ, stdout=subprocess.PIPE).stdout
        print(found)
    """
    done, report = run(tmp_path, body)
    assert done.stdout == python("train.py", cwd=tmp_path).stdout, "opdump adds nothing to an environment"
    assert report["warnings"] == [
        "3 Python processes not captured: started with an environment without OPDUMP_FAMILY: pass that on",
    ]
    assert "it started 3 others, and they were not captured" in report["reason"]


def test_a_program_that_becomes_another_one_ends_its_capture_first(tmp_path: Path) -> None:
    body = """
    train(0)
    torch.ones(3) + 1
    sys.stdout.flush()
    for words in (['true'], ['no such program']):
        if (process := os.fork()) == 0:
            try: os.execvp(words[0], words)
            except OSError: print(train(4), flush=True)
            os._exit(0)
        print(os.waitpid(process, 0)[1], flush=True)
    try: os.execvp('no such program', ['no such program'])
    except OSError: pass
    torch.ones(3) * 2
    os.execv(sys.executable, [sys.executable, '-c', 'import os; print(os.environ.get("OPDUMP_FAMILY"))'])
    """
    done, report = run(tmp_path, body)
    assert done.stdout == python("train.py", cwd=tmp_path).stdout
    assert done.stdout.splitlines()[-1] == "None"
    (warning,) = report["warnings"]
    assert "this process became another program (os.exec)" in warning
    assert [child["end"] for child in report["children"]] == ["ended"] * 2
    catalog = package.open(tmp_path / "dump")
    assert {op.op_type for op in catalog.ops(rank=0)} >= {"add", "mul"}, "the step that was cut off is written"
    assert not catalog.problems


LAUNCHER = """
import multiprocessing, os, subprocess, sys

def work(number):
    import train
    train.train(number)

if __name__ == '__main__':
    for kind in sys.argv[1:]:
        if kind == 'itself':
            work(3)
        elif kind == 'subprocess':
            subprocess.run([sys.executable, '-c', 'import train; train.train(2)'])
        else:
            process = multiprocessing.get_context(kind).Process(target=work, args=(1,))
            process.start()
            process.join()
    print('end')
"""


@pytest.mark.parametrize("kinds", [("fork", "subprocess"), ("spawn", "itself")])
def test_processes_of_a_program_that_has_imported_no_framework_yet_are_ranks_of_one_run(
    tmp_path: Path, kinds: tuple[str, str]
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "launch.py").write_text(LAUNCHER)
    write_config(tmp_path, saved_data="statistic")
    done = plain("launch.py", *kinds, cwd=tmp_path, OPDUMP_START="-c data_dump.json --json")
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr
    assert len(done.stderr.splitlines()) == 1, "one report for all"
    report = figures(done)
    assert_is_readable(tmp_path, report)
    other = "rank_0" if "itself" in kinds else "rank_10001"
    assert {path.name for path in (tmp_path / "dump").iterdir()} == {"rank_10000", other}
    assert report["executed"] == (55 if "itself" in kinds else 0)


def test_a_program_that_starts_processes_and_needs_no_framework_runs_as_if_opdump_were_not_there(
    tmp_path: Path,
) -> None:
    code = (
        "import multiprocessing, os, subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'print(1)'])\n"
        "process = multiprocessing.get_context('fork').Process(target=print, args=(2,)); process.start(); process.join()\n"
        "if os.fork() == 0: sys.exit(0)\n"
        "os.wait()"
    )
    write_config(tmp_path)
    expected = plain("-c", code, cwd=tmp_path, OPDUMP_START="")
    for config in ("data_dump.json", "absent.json"):
        done = plain("-c", code, cwd=tmp_path, MINDSPORE_DUMP_CONFIG=config)
        assert (done.returncode, done.stdout, done.stderr) == (expected.returncode, expected.stdout, expected.stderr)
    assert not (tmp_path / "dump").exists()


ENVIRONMENTS = """
import os, subprocess, sys
early = dict(os.environ)
if 'torch' in sys.argv: import torch
own = {key: os.environ[key] for key in ('PATH', 'HOME', 'TMPDIR') if key in os.environ}
asked = {**own, 'OPDUMP_START': os.environ['OPDUMP_START']}
code = 'import os, train; print("OPDUMP_FAMILY" in os.environ, train.train(1))'
for environ in (early, asked, own):
    subprocess.run([sys.executable, '-c', code], env=environ, check=True)
"""


@pytest.mark.parametrize("framework", ["", "torch"])
def test_processes_whose_environment_was_put_together_before_the_run_find_it(tmp_path: Path, framework: str) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "launch.py").write_text(ENVIRONMENTS)
    write_config(tmp_path, saved_data="statistic")
    done = plain("launch.py", framework, cwd=tmp_path, OPDUMP_START="-c data_dump.json --json")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["False"] * 3, (
        "opdump adds nothing to an environment"
    )
    assert len(done.stderr.splitlines()) == 2, "a warning, and one report for all"
    report = figures(done)
    assert_is_readable(tmp_path, report)
    assert {path.name for path in (tmp_path / "dump").iterdir()} == {"rank_10000", "rank_10001"}
    assert report["warnings"] == [
        "1 Python process not captured: started with an environment without OPDUMP_START: pass that on"
    ]


def test_a_launcher_whose_processes_all_lack_the_variable_says_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "launch.py").write_text(
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import train; train.train(1)'], env={})\n"
    )
    write_config(tmp_path, saved_data="statistic")
    done = plain("launch.py", cwd=tmp_path, OPDUMP_START="-c data_dump.json")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines() == [
        "opdump: warning: 1 Python process not captured: started with an environment without OPDUMP_START: pass that on",
        "opdump: nothing was captured: nothing ran in this process; it started 1 others, and they were not captured",
    ]


def test_a_process_that_is_asked_for_something_else_is_a_run_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "launch.py").write_text(
        "import os, subprocess, sys\nenviron = {**os.environ, 'OPDUMP_START': '-c data_dump.json --path other'}\n"
        "subprocess.run([sys.executable, '-c', 'import train; train.train(1)'], env=environ, check=True)\n"
    )
    write_config(tmp_path, saved_data="statistic")
    done = plain("launch.py", cwd=tmp_path, OPDUMP_START="-c data_dump.json")
    assert done.stderr.count(" operators ran: ") == 1, done.stderr
    assert "55 operators ran" in done.stderr
    assert package.open(tmp_path / "other").ranks == (0,)
