"""Processes that a program starts under capture become further ranks of the same run; those that cannot are reported."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import opdump as package
from opdump.capturing.family import Family
from opdump.configs.acl_plan import plan_from_acl_text
from opdump.plan import DumpPlan, KernelPattern, StepSet
from tests.cli.programs import opdump_anew, python, write_config
from tests.startup.test_plain_command import figures, plain

pytestmark = pytest.mark.torch

TRAIN = """
import concurrent.futures, multiprocessing, os, signal, subprocess, sys
import torch

def train(number, steps=2):
    torch.manual_seed(number)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(5, 4)).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item().hex() if steps else ''

def die(steps):
    train(0, steps)
    (torch.ones(3) + 1) * 2
    os.kill(os.getpid(), signal.SIGKILL)

def joined(process):
    process.start()
    process.join()
    return process.exitcode

def forked_by_hand():
    process = os.fork()
    if process == 0:
        train(1)
        os._exit(0)
    return os.waitpid(process, 0)[1]
"""


def run(folder: Path, body: str, *options: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run TRAIN and the body under `opdump run`; return the finished process and the report."""
    (folder / "train.py").write_text(f"{TRAIN}\nif __name__ == '__main__':\n    {body}\n")
    config = write_config(folder, saved_data="statistic")
    done = opdump_anew("run", "-c", config.name, "--json", *options, "train.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stderr.splitlines()[-1])
    return done, report


def assert_is_readable(folder: Path, report: dict[str, Any]) -> None:
    """Check that every child with data has a directory with its own index, whose contents match its report."""
    ranks = [child["rank"] for child in report["children"]]
    assert len(set(ranks)) == len(ranks)
    for child in report["children"]:
        assert child["executed"] == child["captured"] + sum(child["skipped"].values()) > 0
        executions = package.open(folder / "dump").executions(rank=child["rank"])
        assert sum(1 for each in executions if each.op.op_type == "addmm") == 2 * (child["executed"] // 55)


@pytest.mark.parametrize(
    ("lines", "processes"),
    [
        (
            [
                "print(joined(multiprocessing.get_context('fork').Process(target=train, args=(1,))))",
                "with concurrent.futures.ProcessPoolExecutor(1) as pool: print(list(pool.map(train, [1, 2])))",
                "with multiprocessing.get_context('fork').Pool(1) as pool: print(pool.map(train, [1, 2]))",
                "print(forked_by_hand())",
                "if (process := os.fork()) == 0: train(1)",
                "else: print(os.waitpid(process, 0)[1])",
            ],
            5,
        ),
        (
            [
                "for kind in ('spawn', 'forkserver'):",
                "    print(joined(multiprocessing.get_context(kind).Process(target=train, args=(1,))))",
                "command = [sys.executable, '-c', 'import train; print(train.train(3))']",
                "print(subprocess.run(command, capture_output=True).stdout)",
            ],
            3,
        ),
    ],
    ids=["fork, executor, pool, os.fork, a fork that falls through", "spawn, forkserver, subprocess"],
)
def test_children_of_every_kind_are_captured(tmp_path: Path, lines: list[str], processes: int) -> None:
    done, report = run(tmp_path, "\n    ".join(lines))
    assert done.stdout == python("train.py", cwd=tmp_path).stdout != ""
    assert len(done.stderr.splitlines()) == 1, "the report of the first process, and no other"
    assert report["executed"] == 0
    assert [child["end"] for child in report["children"]] == ["ended"] * processes
    assert_is_readable(tmp_path, report)
    assert sorted(path.name for path in (tmp_path / "dump").iterdir()) == sorted(
        f"rank_{child['rank']}" for child in report["children"]
    )


def test_a_child_that_is_killed_is_reported_and_the_rest_is_readable(tmp_path: Path) -> None:
    _, report = run(
        tmp_path,
        "train(0); print([joined(multiprocessing.get_context('fork').Process(target=die, args=(steps,))) for steps in (2, 0)])",
    )
    child, without_data = report["children"]
    assert (child["end"], without_data["end"], without_data["rank"]) == ("lost", "lost", None)
    assert ["ended without a report" in warning for warning in report["warnings"]] == [True, True]
    assert "the steps that it wrote are complete" in report["warnings"][0]
    assert "nothing of it was written" in report["warnings"][1]
    catalog = package.open(tmp_path / "dump")
    assert catalog.ranks == (0, child["rank"])
    assert {execution.op.step for execution in catalog.executions(rank=child["rank"])} >= {0}
    assert {execution.op.step for execution in catalog.executions(rank=0)} == {0, 1}


def test_children_that_are_left_out_are_counted_and_reported(tmp_path: Path) -> None:
    body = "train(0); [joined(multiprocessing.get_context('fork').Process(target=train, args=(n,))) for n in (1, 2)]"
    _, report = run(tmp_path, body, "--no-children")
    assert [child["end"] for child in report["children"]] == ["not captured"] * 2
    assert report["warnings"] == ["2 child processes not captured: children are left out"]
    assert [path.name for path in (tmp_path / "dump").iterdir()] == ["rank_0"]


def test_workers_of_a_data_loader_are_no_missed_trainings(tmp_path: Path) -> None:
    body = (
        "data = torch.utils.data.TensorDataset(torch.ones(8, 2))\n    for context in ('fork', 'spawn'):\n        "
        "list(torch.utils.data.DataLoader(data, batch_size=2, num_workers=1, multiprocessing_context=context))"
    )
    _, report = run(tmp_path, body)
    assert (report["children"], report["warnings"]) == ([], [])
    assert [path.name for path in (tmp_path / "dump").iterdir()] == ["rank_0"]


def test_a_capture_from_python_takes_its_children_in(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        f"""{TRAIN}
if __name__ == '__main__':
    import opdump
    with opdump.capture(path="dump", saved_data="statistic") as dump:
        joined(multiprocessing.get_context('fork').Process(target=train, args=(1,)))
    print([child.end for child in dump.report.children], os.environ.get("OPDUMP_FAMILY"))
    joined(multiprocessing.get_context('fork').Process(target=train, args=(1,)))
"""
    )
    done = python("train.py", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("['ended'] None\n", "")
    assert [path.name for path in (tmp_path / "dump").iterdir()] == ["rank_10000"]


def test_processes_have_the_numbers_of_the_order_in_which_they_were_started(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        f"""{TRAIN}
def waits(number, before, after):
    before.wait()
    train(number, steps=number + 1)
    after.set()

if __name__ == '__main__':
    import opdump
    context = multiprocessing.get_context('fork')
    begins, is_first = context.Event(), context.Event()
    with opdump.capture(path="dump", saved_data="statistic"):
        started = [
            context.Process(target=waits, args=(0, begins, context.Event())),
            context.Process(target=waits, args=(1, is_first, begins)),
        ]
        for process in started:
            process.start()
        is_first.set()
        for process in started:
            process.join()
"""
    )
    assert python("train.py", cwd=tmp_path).returncode == 0
    catalog = package.open(tmp_path / "dump")
    # The second one works first.
    assert {rank: len(catalog.steps_of(rank)) for rank in catalog.ranks} == {10_000: 1, 10_001: 2}


def test_a_plan_reaches_a_child_as_it_is(tmp_path: Path) -> None:
    dump = {
        "dump_path": str(tmp_path),
        "dump_mode": "all",
        "dump_level": "op",
        "dump_list": [
            {"model_name": "Net", "layer": ["conv1"], "opname_blacklist": [{"name": "conv2", "pos": ["input0"]}]}
        ],
    }
    plans = [
        DumpPlan(path=tmp_path),
        DumpPlan(
            path=tmp_path,
            steps=StepSet.parse("0|5-8"),
            selection="kernels",
            kernels=(KernelPattern.parse("name-regex(a.+)"), KernelPattern.parse("Conv2D")),
            devices=frozenset({0, 3}),
            config_text='{"a": "ä"}',
            warnings=("w",),
        ),
        plan_from_acl_text(json.dumps({"dump": dump}), environ={}),
    ]
    for plan in plans:
        family = Family.begin(plan, {})
        try:
            read = Family.named(str(family.directory))
            assert read is not None
            assert (read.plan, read.plan.config_text, read.plan.warnings) == (plan, plan.config_text, plan.warnings)
        finally:
            family.end()


def test_numbers_of_a_family_are_taken_once_and_strangers_find_none(tmp_path: Path) -> None:
    family = Family.begin(DumpPlan(path=tmp_path), {"rank": 1})
    other = Family.named(str(family.directory))
    assert other is not None
    assert (family.claim(0), other.claim(0), other.claim(1)) == (True, False, True)
    assert [family.own_number(), other.own_number(), family.own_number()] == [20_000, 20_001, 20_002]
    os.chmod(family.directory, 0o755)
    assert Family.named(str(family.directory)) is None, "others could have written there"
    family.end()
    assert Family.named(str(family.directory)) is None


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
def test_the_report_waits_for_pools_and_for_processes_that_were_not_joined(tmp_path: Path, way: str) -> None:
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


def test_children_of_another_framework_are_counted_and_reported(tmp_path: Path) -> None:
    # An importable module of that name is enough for opdump to notice: nothing in it is called.
    (tmp_path / "tensorflow.py").write_text("__version__ = '2.21.0'\n")
    body = """
    train(0)
    for code in ('import tensorflow', 'import tensorflow, train; train.train(1)', 'import train, tensorflow; train.train(1)'):
        subprocess.run([sys.executable, '-c', code], check=True)
    """
    _, report = run(tmp_path, body)
    assert sorted(child["end"] for child in report["children"]) == ["ended", "ended", "not captured"]
    assert report["warnings"] == [
        "1 child process not captured: they import tensorflow, and this run captures torch: choose with --framework"
    ]


def test_forked_children_that_import_another_framework_and_run_nothing_of_this_one_are_counted(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("__version__ = '2.21.0'\n")
    body = """
    train(0)
    for work in ('import tensorflow', 'import tensorflow; train(1)', 'pass'):
        if (process := os.fork()) == 0:
            exec(work)
            os._exit(0)
        os.waitpid(process, 0)
    """
    _, report = run(tmp_path, body)
    assert sorted(child["end"] for child in report["children"]) == ["ended", "ended", "not captured"]
    assert report["warnings"] == [
        "1 child process not captured: they import tensorflow and ran nothing of torch, which this run captures"
    ]


def test_processes_that_cannot_be_followed_are_counted_and_reported(tmp_path: Path) -> None:
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


LOSING = f"""{TRAIN}
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
    (tmp_path / "train.py").write_text(LOSING)
    write_config(tmp_path, saved_data="statistic")
    done = opdump_anew("run", "-c", "data_dump.json", "--json", *options, "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, said), done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("{")]
    report = json.loads(line)
    assert report["failure"].startswith("rank_10000: ")
    assert report["failure"].count("the directory was removed") == 1


FORKED = """
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
    (tmp_path / "forks.py").write_text(FORKED)
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


# The launcher sets RANK for its processes, as torchrun does; each of them has child processes work before itself.
RANK_LAUNCHER = """
import os, subprocess, sys, torch
ranks = [subprocess.Popen([sys.executable, 'rank.py'], env={**os.environ, 'RANK': str(rank)}) for rank in range(2)]
print([rank.wait() for rank in ranks])
"""
RANK = f"""{TRAIN}
if __name__ == '__main__':
    joined(multiprocessing.get_context('fork').Process(target=train, args=(0, 1)))
    subprocess.run([sys.executable, '-c', 'import train; train.train(0, 1)'])
    train(0, 3)
"""


def test_a_rank_keeps_its_number_and_what_it_starts_gets_others(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "launch.py").write_text(RANK_LAUNCHER)
    write_config(tmp_path, saved_data="statistic")
    done = plain("launch.py", cwd=tmp_path, OPDUMP_START="-c data_dump.json --json")
    assert (done.returncode, done.stdout) == (0, "[0, 0]\n"), done.stderr
    report = figures(done)
    assert report["warnings"] == []
    catalog = package.open(tmp_path / "dump")
    assert catalog.ranks == (0, 1, 10_000, 10_001, 10_002, 10_003)
    found = {rank: {execution.op.step for execution in catalog.executions(rank=rank)} for rank in catalog.ranks}
    assert found == {rank: {0, 1, 2} if rank < 2 else {0} for rank in catalog.ranks}
