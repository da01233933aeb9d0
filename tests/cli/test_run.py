"""`opdump run`: what the script sees and returns, what is printed at the end, and the closing line of a family of processes."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import opdump as package
from tests.cli.json_shapes import mistakes
from tests.cli.programs import TRAIN, opdump, opdump_anew, python, write_config

pytestmark = pytest.mark.torch

LINE = re.compile(r"^opdump: ([\d,]+) operators ran: ([\d,]+) captured, ([\d,]+) skipped; steps 0-2, ")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One run of the small training script, completely dumped."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "train.py").write_text(TRAIN)
    config = write_config(folder)
    return folder, opdump("run", "-c", config.name, "train.py", "--lr", "0.1", "-c", "other", cwd=folder)


def test_the_script_prints_what_it_prints_without_opdump(
    trained: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = trained
    assert done.returncode == 0, done.stderr
    assert done.stdout == python("train.py", "--lr", "0.1", "-c", "other", cwd=folder).stdout
    assert done.stdout.endswith("arguments: ['--lr', '0.1', '-c', 'other']\n")


def test_a_run_ends_with_its_counts_the_verdict_and_the_next_command(
    trained: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = trained
    line, verdict, following = done.stderr.splitlines()
    assert verdict.startswith("opdump: no NaN, no infinity in ")
    found = LINE.match(line)
    assert found is not None, line
    ran, captured, skipped = (int(number.replace(",", "")) for number in found.groups())
    assert ran == captured + skipped > 0
    assert len(line) < 120
    assert following == f"opdump: next: opdump show {folder / 'dump'}"


def test_the_next_command_works(trained: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = trained
    command = done.stderr.rsplit("next: opdump ", 1)[1].split()
    shown = opdump(*command, cwd=folder)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "Net/0" in shown.stdout


def test_a_module_runs_and_the_environment_names_the_config(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "train.py").write_text(TRAIN)
    config = write_config(tmp_path, path="", iteration="1", saved_data="statistic")
    done = opdump(
        *("run", "--json", "-m", "package.train", "--lr", "1"),
        cwd=tmp_path,
        MINDSPORE_DUMP_CONFIG=str(config),
        MS_DIAGNOSTIC_DATA_PATH=str(tmp_path / "diagnostics"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("arguments: ['--lr', '1']\n")
    report = json.loads(done.stderr.splitlines()[-1])
    assert report["executed"] == report["captured"] + sum(report["skipped"].values())
    assert (report["steps"], report["path"]) == ([1], str(tmp_path / "diagnostics" / "debug_dump"))
    assert (tmp_path / "diagnostics/debug_dump/rank_0/Net/0/1/statistic.csv").is_file()


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        ("sys.exit(3)", 3, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('no data')", 1, "no data\n"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt\n"),
        ("torch.ones(2, 3) @ torch.ones(2, 3)", 1, "mat1 and mat2 shapes cannot be multiplied"),
        ("sys.excepthook = lambda *error: print('hook:', error[1]); raise ValueError('7')", 1, ""),
    ],
)
def test_the_script_ends_as_it_does_without_opdump(tmp_path: Path, ending: str, code: int, said: str) -> None:
    (tmp_path / "train.py").write_text(TRAIN + ending + "\n")
    config = write_config(tmp_path, saved_data="statistic")
    expected = python("train.py", cwd=tmp_path)
    done = opdump("run", "-c", config.name, "train.py", cwd=tmp_path)
    errors = "".join(line for line in done.stderr.splitlines(keepends=True) if not line.startswith("opdump: "))
    assert (done.returncode, done.stdout, errors) == (code, expected.stdout, expected.stderr)
    assert said in errors
    assert LINE.search(done.stderr) or "operators ran" in done.stderr


def test_an_interrupted_run_leaves_readable_files(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN.replace("range(3)", "__import__('itertools').count()"))
    config = write_config(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "opdump", "run", "-c", config.name, "train.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while "step 2" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 130, errors
    assert "operators ran" in errors
    files = list((tmp_path / "dump").rglob("*.npy"))
    assert files
    for file in files:
        np.load(file)
    tensors = list(package.open(tmp_path / "dump"))
    assert {tensor.op.step for tensor in tensors} >= {0, 1}


def test_stop_after_dump_ends_the_script_in_good_order(tmp_path: Path) -> None:
    body = "\n".join("    " + line for line in TRAIN.splitlines())
    (tmp_path / "train.py").write_text(
        f"try:\n{body}\nexcept Exception:\n    print('swallowed')\nfinally:\n    print('closed')\n"
    )
    config = write_config(tmp_path, iteration="0-1")
    done = opdump("run", "-c", config.name, "--stop-after-dump", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "step 2" not in done.stdout
    assert done.stdout.endswith("closed\n")
    assert "swallowed" not in done.stdout
    assert "the script ends here (--stop-after-dump)" in done.stderr
    assert "steps 0-1" in done.stderr


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"iteration": "1,2"}, "iteration"), ({"dump_mode": 7}, "dump_mode"), ({"path": "/proc/dump"}, "/proc/dump")],
)
def test_a_config_that_cannot_be_used_ends_it_before_the_script_starts(
    tmp_path: Path, settings: dict[str, object], said: str
) -> None:
    (tmp_path / "train.py").write_text("print('started')")
    done = opdump("run", "-c", write_config(tmp_path, **settings).name, "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("opdump: error: ")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-c", "data_dump.json", "absent.py"), "cannot open the script 'absent.py'"),
        (("-c", "data_dump.json", "-m", "absent"), "no module named 'absent'"),
        (("-c", "data_dump.json"), "Missing argument"),
        (("--unknown", "train.py"), "No such option"),
        (("-c", "data_dump.json", "--layout", "acl", "train.py"), "mindspore-2.10"),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_says_what_to_type(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    write_config(tmp_path)
    (tmp_path / "train.py").write_text("print('started')")
    done = opdump("run", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert not (tmp_path / "dump").exists()


def test_a_script_with_a_syntax_error_is_reported_as_python_does(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def f(:\n    pass\n")
    done = opdump("run", "-c", write_config(tmp_path).name, "train.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, python("train.py", cwd=tmp_path).stderr)


def test_settings_of_the_command_line_override_the_config(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    config = write_config(tmp_path, iteration="0", saved_data="tensor")
    options = ("--path", "elsewhere", "--layout", "mindspore-2.10", "--short-names")
    done = opdump("run", "-c", config.name, *options, "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "dump").exists()
    names = [file.name for file in (tmp_path / "elsewhere/rank_0/Net/0/0").glob("*.npy")]
    assert all(name.endswith(".DefaultFormat.Float32.npy") for name in names if not name.startswith("Parameter"))
    assert any("Default_network" in name for name in names)
    assert not any("-Linear" in name for name in names)


def test_two_processes_of_torchrun_leave_two_ranks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    config = write_config(tmp_path, iteration="0", saved_data="statistic")
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", "-m", "opdump")
    done = python(*launcher, "run", "-c", config.name, "train.py", "--lr", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("arguments: ['--lr', '1']") == 2
    assert {f"opdump rank {rank}: " in done.stderr for rank in (0, 1)} == {True}
    assert sorted(path.name for path in (tmp_path / "dump").iterdir()) == ["rank_0", "rank_1"]
    assert package.open(tmp_path / "dump").ranks == (0, 1)


def test_progress_is_shown_on_a_terminal_alone(tmp_path: Path) -> None:
    slow = TRAIN.replace("    print(f", "    import time; time.sleep(0.7)\n    print(f")
    (tmp_path / "train.py").write_text(slow)
    config = write_config(tmp_path, saved_data="statistic")
    terminal, ours = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "opdump", "run", "-c", config.name, "train.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=ours,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
    )
    os.close(ours)
    shown = b""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(terminal)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=900) == 0
    assert re.search(rb"opdump: step \d+, [\d,]+ operators, \d", shown), shown


# PyTorch 2.6 writes a file while importing its compiler, and optimizers import it; do that before the limit applies.
# The limit also holds for the files that a forked run prints into, so these runs start anew and print into pipes.
FULL_DISK = "import resource, torch._dynamo\nresource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))\n"


@pytest.mark.parametrize(
    ("beginning", "said"),
    [
        ("import opdump\nopdump.start('other.json')\n", "a capture is already running in this process"),
        (FULL_DISK, "cannot be written ("),
    ],
)
def test_what_opdump_cannot_do_is_reported_in_its_own_words(tmp_path: Path, beginning: str, said: str) -> None:
    (tmp_path / "train.py").write_text(beginning + TRAIN)
    done = opdump_anew("run", "--on-error", "stop", "-c", write_config(tmp_path).name, "train.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    line, *more = [line for line in done.stderr.splitlines() if line.startswith("opdump: error: ")]
    assert said in line
    assert all("the dump is incomplete" in other and said not in other for other in more)


@pytest.mark.parametrize("ending", ["", "sys.exit(7)\n"])
def test_a_script_whose_dump_is_lost_runs_to_its_end(tmp_path: Path, ending: str) -> None:
    config = write_config(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN + ending)
    plain = python("train.py", cwd=tmp_path)
    (tmp_path / "train.py").write_text(FULL_DISK + TRAIN + ending)
    done = opdump_anew("run", "-c", config.name, "train.py", cwd=tmp_path)
    assert done.stdout == plain.stdout
    assert (done.returncode, plain.returncode) == ((7, 7) if ending else (3, 0)), done.stderr
    assert "Traceback" not in done.stderr
    assert "compare" not in done.stderr
    at_once, at_the_end = [line for line in done.stderr.splitlines() if "cannot be written (" in line]
    assert at_once.endswith("The program continues, and nothing more is dumped")
    assert at_the_end.startswith("opdump: error: the dump is incomplete")
    strict = opdump("run", "--strict", "-c", config.name, "--path", "other", "train.py", cwd=tmp_path)
    assert strict.returncode == 1
    assert "step 2" not in strict.stdout


@pytest.mark.parametrize("asked", [False, True])
def test_slow_kernels_are_reported_once_unless_they_were_asked_for(tmp_path: Path, asked: bool) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    missing = (
        "import sys; sys.modules['opdump.kernels._native'] = None; from opdump.commands import main; main(sys.argv[1:])"
    )
    environment = {
        name: value for name, value in os.environ.items() if name not in ("OPDUMP_ISA", "OPDUMP_REQUIRE_NATIVE")
    }
    done = subprocess.run(
        [sys.executable, "-c", missing, "run", "--path", "dump", "train.py"],
        cwd=tmp_path,
        env={**environment, **({"OPDUMP_ISA": "numpy"} if asked else {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "compiled kernels" in line]
    assert len(told) == (0 if asked else 1), done.stderr
    if told:
        assert told[0].startswith(
            "opdump: statistics take 20 to 100 times longer than with the compiled kernels: opdump was installed without a C++ compiler."
        )
        assert done.stderr.startswith(told[0])


PROGRAM = """
import multiprocessing
import torch


def train():
    net = torch.nn.Linear(2, 1)
    (net(torch.ones(1, 2)) / 0).sum().backward()


if __name__ == "__main__":
    train()
    for _ in range(2):
        child = multiprocessing.get_context("{way}").Process(target=train)
        child.start()
        child.join()
        assert child.exitcode == 0
"""


@pytest.mark.parametrize(
    ("way", "layout", "saved_data"),
    [("fork", "mindspore-2.3", "full"), ("spawn", "mindspore-2.3", "statistic"), ("fork", "acl", "tensor")],
)
def test_files_and_bytes_of_the_family_are_those_on_disk(
    way: str, layout: str, saved_data: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM.replace("{way}", way))
    if layout == "acl":
        (tmp_path / "dump").mkdir()
        (tmp_path / "config.json").write_text(
            json.dumps({"dump": {"dump_path": str(tmp_path / "dump"), "dump_op_switch": "on", "dump_list": []}})
        )
        name = "config.json"
    else:
        name = write_config(tmp_path, saved_data=saved_data).name
    before: dict[Path, tuple[int, int]] = {}
    for _ in range(2):
        done = opdump("run", "--json", "-c", name, "train.py", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stderr.splitlines()[-1])
        assert mistakes("run", found) == []
        assert len(found["children"]) == 2
        files = {
            path: (path.stat().st_mtime_ns, path.stat().st_size)
            for path in Path(found["path"]).rglob("*")
            if path.is_file()
        }
        written = {path: facts for path, facts in files.items() if before.get(path) != facts}
        everyone = [found, *found["children"]]
        assert sum(each["files"] for each in everyone) == len(written), sorted(map(str, written))
        assert sum(each["bytes"] for each in everyone) == sum(size for _, size in written.values())
        before = files
