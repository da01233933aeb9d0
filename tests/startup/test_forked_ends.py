"""However a forked child ends, it prints the same as without capture, and only the first process prints totals."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.programs import opdump_anew, write_config
from tests.startup.test_plain_command import plain

pytestmark = pytest.mark.torch

PROGRAM = """
import os, sys, torch

def work():
    torch.nn.Linear(4, 2)(torch.ones(5, 4)).sum().backward()

work()
for kind in ('raise', 'exit', 'text', 'none', 'through'):
    child = os.fork()
    if child == 0:
        work()
        if kind == 'raise': raise ValueError('in the child')
        if kind == 'exit': sys.exit(3)
        if kind == 'text': sys.exit('said by the child')
        if kind == 'none': sys.exit()
        break
    print(kind, os.waitpid(child, 0)[1], flush=True)
"""


@pytest.mark.parametrize("config", ["data_dump.json", "acl.json"])
@pytest.mark.parametrize("way", ["opdump run", "OPDUMP_START"])
def test_a_forked_child_ends_as_it_does_by_itself(tmp_path: Path, config: str, way: str) -> None:
    (tmp_path / "forks.py").write_text(PROGRAM)
    write_config(tmp_path, saved_data="statistic")
    (tmp_path / "acl").mkdir()
    dump = {"dump_path": str(tmp_path / "acl"), "dump_mode": "all", "dump_level": "all", "dump_op_switch": "on"}
    (tmp_path / "acl.json").write_text(json.dumps({"dump": dump}))
    expected = plain("forks.py", cwd=tmp_path, OPDUMP_START="")
    assert expected.stdout.split() == ["raise", "256", "exit", "768", "text", "256", "none", "0", "through", "0"]
    done: subprocess.CompletedProcess[str]
    if way == "opdump run":
        done = opdump_anew("run", "-c", config, "--json", "forks.py", cwd=tmp_path)
    else:
        done = plain("forks.py", cwd=tmp_path, OPDUMP_START=f"-c {config} --json")
    assert (done.returncode, done.stdout) == (0, expected.stdout), done.stderr
    *said, line = done.stderr.splitlines()
    assert said == expected.stderr.splitlines()
    report = json.loads(line)
    assert [child["end"] for child in report["children"]] == ["ended"] * 5
    assert {child["captured"] for child in report["children"]} == {report["captured"]} != {0}
