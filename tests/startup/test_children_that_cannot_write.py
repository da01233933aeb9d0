"""If a child cannot finish writing its part of the dump, the first process reports it, also in its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.programs import opdump_anew, write_config
from tests.startup.test_children import TRAIN

pytestmark = pytest.mark.torch

PROGRAM = f"""{TRAIN}
import glob, os, shutil

def loses_its_directory(number):
    train(number)
    for folder in glob.glob('dump/rank_1*'):
        while os.path.exists(folder):  # a writer may still be at work in it
            shutil.rmtree(folder, ignore_errors=True)
    train(number, 3)
    print('the child ran on', flush=True)

if __name__ == '__main__':
    print(joined(multiprocessing.get_context('fork').Process(target=loses_its_directory, args=(1,))))
"""


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [((), 3, "the child ran on\n0\n"), (("--strict",), 1, "1\n"), (("--on-error", "stop"), 3, "1\n")],
    ids=["continue", "strict", "stop"],
)
def test_a_child_that_cannot_write_is_a_failure_of_the_run(
    tmp_path: Path, options: tuple[str, ...], code: int, said: str
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    write_config(tmp_path, saved_data="statistic")
    done = opdump_anew("run", "-c", "data_dump.json", "--json", *options, "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, said), done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("{")]
    report = json.loads(line)
    assert report["failure"].startswith("rank_10000: ")
    assert report["failure"].count("the directory was removed") == 1
