"""Processes that a program starts under capture become further ranks of the same run."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import opdump as package
from opdump.capturing.children import Family
from opdump.configs.acl.plan import plan_from_acl_text
from opdump.plan import DumpPlan, KernelPattern, StepSet
from tests.cli.programs import opdump_anew, python, write_config

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


@pytest.mark.torch
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


@pytest.mark.torch
def test_a_child_that_is_killed_is_told_and_the_rest_is_readable(tmp_path: Path) -> None:
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


@pytest.mark.torch
def test_children_that_are_left_out_are_counted_and_told(tmp_path: Path) -> None:
    body = "train(0); [joined(multiprocessing.get_context('fork').Process(target=train, args=(n,))) for n in (1, 2)]"
    _, report = run(tmp_path, body, "--no-children")
    assert [child["end"] for child in report["children"]] == ["not captured"] * 2
    assert report["warnings"] == ["2 child processes not captured: children are left out"]
    assert [path.name for path in (tmp_path / "dump").iterdir()] == ["rank_0"]


@pytest.mark.torch
def test_workers_of_a_data_loader_are_no_missed_trainings(tmp_path: Path) -> None:
    body = (
        "data = torch.utils.data.TensorDataset(torch.ones(8, 2))\n    for context in ('fork', 'spawn'):\n        "
        "list(torch.utils.data.DataLoader(data, batch_size=2, num_workers=1, multiprocessing_context=context))"
    )
    _, report = run(tmp_path, body)
    assert (report["children"], report["warnings"]) == ([], [])
    assert [path.name for path in (tmp_path / "dump").iterdir()] == ["rank_0"]


@pytest.mark.torch
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
