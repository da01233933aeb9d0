"""`OPDUMP_START=1 python train.py`: the plain command dumps like `opdump run`; without the variable nothing is loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import opdump as package
from tests.cli.programs import TRAIN, opdump_anew, write_config

pytestmark = pytest.mark.torch


def plain(*arguments: str, cwd: Path, said: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run Python with OPDUMP_START and these variables."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "OPDUMP_START": "1", **environ},
        input=said,
        capture_output=True,
        text=True,
        check=False,
    )


def without_line(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("opdump: "))


def figures(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    """The report of a run, without what differs from run to run."""
    report: dict[str, object] = json.loads(done.stderr.splitlines()[-1])
    return {
        key: value
        for key, value in report.items()
        if key not in ("seconds", "capture_seconds", "overhead", "path", "bytes")
    }


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    write_config(tmp_path)
    return tmp_path


@pytest.mark.parametrize("variable", ["MINDSPORE_DUMP_CONFIG", "MS_ACL_DUMP_CFG_PATH"])
def test_the_plain_command_dumps_what_opdump_run_dumps(script: Path, variable: str) -> None:
    write_config(script, saved_data="tensor")
    environ = {variable: str(script / "data_dump.json")}
    done = plain("train.py", "--lr", "1", cwd=script, **environ, OPDUMP_START="--json --path plain")
    run = opdump_anew("run", "--json", "--path", "run", "train.py", "--lr", "1", cwd=script, **environ)
    assert (done.returncode, done.stdout) == (0, run.stdout), done.stderr
    assert figures(done) == figures(run)
    names = {
        kind: sorted((tensor.name, tensor.dtype, tensor.shape) for tensor in package.open(script / kind))
        for kind in ("plain", "run")
    }
    assert names["plain"] == names["run"] != []


def test_without_the_variable_nothing_is_imported_and_nothing_is_made(script: Path) -> None:
    code = "import sys; print([name for name in sys.modules if name.startswith('opdump')])"
    config = str(script / "data_dump.json")
    done = plain("-c", code, cwd=script, OPDUMP_START="", MINDSPORE_DUMP_CONFIG=config)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
    done = plain("train.py", cwd=script, OPDUMP_START="", MINDSPORE_DUMP_CONFIG=config)
    assert (done.stderr, (script / "dump").exists()) == ("", False)


def test_what_the_hook_costs_a_python_that_is_not_asked_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [path for path in map(Path, sys.path) if (path / "opdump_start.pth").is_file()]
    assert lines, "the installation has the file that Python reads at start"
    text = (lines[0] / "opdump_start.pth").read_text()
    (line,) = text.split("\n")[:-1]
    began = time.perf_counter()
    for _ in range(1000):
        exec(line, {})
    with capsys.disabled():
        print(f"\nthe start-up hook without its variable: {(time.perf_counter() - began):.4f} ms a start")


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("sys.exit(3)", 3),
        ("sys.exit('no data')", 1),
        ("torch.ones(2, 3) @ torch.ones(2, 3)", 1),
        ("class Odd(Exception): pass\nraise Odd('7')", 1),
    ],
)
def test_the_program_ends_as_it_does_by_itself(script: Path, ending: str, code: int) -> None:
    (script / "train.py").write_text(f"{TRAIN}{ending}\n")
    expected = plain("train.py", cwd=script, OPDUMP_START="")
    done = plain("train.py", cwd=script, MINDSPORE_DUMP_CONFIG="data_dump.json")
    assert (done.returncode, done.stdout, without_line(done.stderr)) == (code, expected.stdout, expected.stderr)
    assert done.stderr.splitlines()[-1].startswith("opdump: ")
    assert "operators ran" in done.stderr


def test_a_module_a_command_line_and_a_prompt_are_programs_too(script: Path) -> None:
    config = str(script / "data_dump.json")
    (script / "package").mkdir()
    (script / "package" / "__main__.py").write_text("import train")
    for number, (command, said) in enumerate([(("-m", "package"), ""), (("-c", "import train"), ""), (("-i",), TRAIN)]):
        text = said.replace("    print(f", "\n    print(f").replace("\nprint(", "\n\nprint(") if said else ""
        done = plain(*command, cwd=script, said=text, OPDUMP_START=f"-c {config} --path {number}")
        assert done.returncode == 0, done.stderr
        assert "operators ran" in done.stderr, done.stderr
        assert package.open(script / str(number)).steps == (0, 1, 2)


@pytest.mark.parametrize("command", [("-c", "print('quiet')"), ("-m", "pip", "--version"), ("-m", "json.tool", "-h")])
def test_what_imports_no_framework_runs_as_if_opdump_were_not_there(script: Path, command: tuple[str, ...]) -> None:
    expected = plain(*command, cwd=script, OPDUMP_START="")
    for config in ("data_dump.json", "absent.json")[:: 1 if command[0] == "-c" else 2]:
        done = plain(*command, cwd=script, MINDSPORE_DUMP_CONFIG=config)
        assert (done.returncode, done.stdout, done.stderr) == (expected.returncode, expected.stdout, expected.stderr)
    assert not (script / "dump").exists()


def test_to_look_for_a_framework_is_not_to_import_it(script: Path) -> None:
    code = "import importlib.util; print(importlib.util.find_spec('torch').name)"
    done = plain("-c", code, cwd=script, MINDSPORE_DUMP_CONFIG="absent.json")
    assert (done.returncode, done.stdout, done.stderr) == (0, "torch\n", "")


@pytest.mark.parametrize(
    ("environ", "code", "said"),
    [
        ({"MINDSPORE_DUMP_CONFIG": "absent.json"}, 1, "absent.json"),
        ({"MINDSPORE_DUMP_CONFIG": "wrong.json"}, 1, "dump_mode"),
        ({"MINDSPORE_DUMP_CONFIG": "data_dump.json", "MS_ACL_DUMP_CFG_PATH": "wrong.json"}, 1, "the same file"),
        ({"OPDUMP_START": "--strickt"}, 2, "No such option"),
        ({"OPDUMP_START": "yes"}, 2, "OPDUMP_START='yes'"),
    ],
)
def test_what_cannot_be_used_ends_the_program_before_its_first_step(
    script: Path, environ: dict[str, str], code: int, said: str
) -> None:
    write_config(script, dump_mode=7).rename(script / "wrong.json")
    write_config(script)
    done = plain("train.py", cwd=script, **environ)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (code, "")
    assert line.startswith("opdump: error: ")
    assert said in line
    assert not (script / "dump").exists()


def test_a_program_that_catches_even_that_ends_with_the_same_code(script: Path) -> None:
    (script / "train.py").write_text("try:\n    import torch\nexcept BaseException:\n    print('caught')\n")
    done = plain("train.py", cwd=script, MINDSPORE_DUMP_CONFIG="absent.json")
    assert (done.returncode, done.stdout) == (1, "caught\n")
    assert "absent.json" in done.stderr


def test_the_program_sees_the_command_line_that_it_was_given(script: Path) -> None:
    (script / "train.py").write_text(
        "import sys, torch\nprint(sys.argv, sys.orig_argv[1:], __name__, __file__, sys.path[0])\ntorch.ones(2) + 1\n"
    )
    expected = plain("train.py", "-c", "--x", cwd=script, OPDUMP_START="")
    done = plain("train.py", "-c", "--x", cwd=script, MINDSPORE_DUMP_CONFIG="data_dump.json")
    assert (done.returncode, done.stdout) == (0, expected.stdout)


def test_a_capture_that_the_program_begins_first_is_the_only_one(script: Path) -> None:
    (script / "train.py").write_text(f"import opdump\nopdump.start(path='own')\n{TRAIN}")
    done = plain("train.py", cwd=script, MINDSPORE_DUMP_CONFIG="data_dump.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert package.open(script / "own").steps == (0, 1, 2)
    assert not (script / "dump").exists()


def test_stop_after_dump_ends_the_program_in_good_order(script: Path) -> None:
    write_config(script, iteration="0-1")
    done = plain("train.py", cwd=script, OPDUMP_START="-c data_dump.json --stop-after-dump")
    assert done.returncode == 0, done.stderr
    assert "step 2" not in done.stdout
    assert "Traceback" not in done.stderr
    assert "the script ends here (--stop-after-dump)" in done.stderr
    assert "steps 0-1" in done.stderr


def test_strict_decides_how_the_program_ends(script: Path) -> None:
    (script / "train.py").write_text(
        "import torch\nx = torch.zeros(4, dtype=torch.uint8).view(torch.bits8)\nprint(x.clone().shape[0] == 4)\n"
    )
    expected = opdump_anew("run", "-c", "data_dump.json", "--strict", "train.py", cwd=script)
    done = plain("train.py", cwd=script, OPDUMP_START="-c data_dump.json --strict")
    assert (done.returncode, done.stdout) == (expected.returncode, expected.stdout) == (1, "True\n")
    assert "opdump: error: strict: " in done.stderr


def test_opdump_run_is_not_captured_twice(script: Path) -> None:
    done = opdump_anew(
        "run", "-c", "data_dump.json", "train.py", cwd=script, OPDUMP_START="-c data_dump.json --path twice"
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(" operators ran: ") == 1
    assert not (script / "twice").exists()


@pytest.mark.parametrize("way", ["variable", "option"])
def test_a_variable_that_names_another_file_is_never_ignored_in_silence(script: Path, way: str) -> None:
    (script / "other.json").write_text((script / "data_dump.json").read_text())
    environ = {"MS_ACL_DUMP_CFG_PATH": "other.json"}
    if way == "variable":
        done = opdump_anew("run", "train.py", cwd=script, **environ, MINDSPORE_DUMP_CONFIG="data_dump.json")
        assert (done.returncode, done.stdout) == (1, "")
        assert "expected the same file or only one of them" in done.stderr
    else:
        done = opdump_anew("run", "-c", "data_dump.json", "train.py", cwd=script, **environ)
        assert done.returncode == 0
        assert "opdump: warning: MS_ACL_DUMP_CFG_PATH names 'other.json', which is ignored" in done.stderr


MARKING = """
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


def test_a_mark_counts_in_the_process_that_makes_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MARKING)
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
