"""Processes that keep working after the program's last line, and processes that are cut off, are reported truthfully."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import opdump as package
from tests.cli.programs import opdump_anew, write_config
from tests.startup.test_children import TRAIN, assert_is_readable, run
from tests.startup.test_plain_command import figures, plain

pytestmark = pytest.mark.torch

POOL = """
    pool = concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context('fork'))
    print(list(pool.map(train, [1, 2])), flush=True)
    release, wait = os.pipe()[::-1]
    def late(): os.read(wait, 1); train(3)
    multiprocessing.get_context('fork').Process(target=late).start()
    import threading
    threading.Thread(target=lambda: (threading.main_thread().join(), os.write(release, b'x'))).start()
"""


@pytest.mark.parametrize("way", ["opdump run", "OPDUMP_START"])
def test_the_report_waits_for_pools_and_for_processes_that_nobody_joined(tmp_path: Path, way: str) -> None:
    if way == "opdump run":
        _, report = run(tmp_path, POOL)
    else:
        (tmp_path / "train.py").write_text(f"{TRAIN}\nif __name__ == '__main__':\n    {POOL}\n")
        write_config(tmp_path, saved_data="statistic")
        done = plain("train.py", cwd=tmp_path, OPDUMP_START="-c data_dump.json --json")
        assert done.returncode == 0, done.stderr
        report = figures(done)
    assert (report["warnings"], report["reason"]) == ([], "")
    assert sorted((child["end"], child["executed"]) for child in report["children"]) == [("ended", 55), ("ended", 110)]
    assert_is_readable(tmp_path, report)
    assert {path.name for path in (tmp_path / "dump").iterdir()} == {"rank_10000", "rank_10001"}


def test_a_child_that_is_cut_off_says_at_which_step_and_is_a_failure_under_strict(tmp_path: Path) -> None:
    body = """
    context = multiprocessing.get_context('fork')
    workers = [context.Process(target=work, args=(2,)) for work in (die, train)]
    for worker in workers: worker.start()
    for worker in workers: worker.join()
    print([worker.exitcode for worker in workers])
    """
    done, report = run(tmp_path, body)
    assert done.stdout == "[-9, 0]\n"
    cut, whole = sorted(report["children"], key=lambda child: str(child["end"]), reverse=True)
    assert (cut["end"], whole["end"]) == ("lost", "ended")
    assert cut["last_step"] is not None
    assert 0 < cut["captured"] <= whole["captured"]
    (warning,) = report["warnings"]
    assert f"rank_{cut['rank']}: this child process" in warning
    assert f"step {cut['last_step']} is the last of them" in warning
    catalog = package.open(tmp_path / "dump")
    assert not catalog.problems
    assert max(each.op.step for each in catalog.executions(rank=cut["rank"])) == cut["last_step"]
    strict = opdump_anew("run", "-c", "data_dump.json", "--strict", "--path", "strict", "train.py", cwd=tmp_path)
    assert (strict.returncode, strict.stdout) == (1, done.stdout)
    assert "strict: child processes were cut off: rank_1000" in strict.stderr


def test_a_run_that_filed_nothing_is_one_that_ended(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    write_config(tmp_path)
    done = opdump_anew("run", "-c", "data_dump.json", "train.py", cwd=tmp_path)
    assert "nothing was captured" in done.stderr
    (shown,) = json.loads(opdump_anew("show", "dump", "--json", cwd=tmp_path).stdout)["runs"]
    assert shown["ended"] is not None
