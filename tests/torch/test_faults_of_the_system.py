"""Faults of the system during a dump: a full disk, no descriptors, a replaced directory, a clock that goes back, a locked index, a failing rename."""

from __future__ import annotations

import errno
import logging
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import opdump
from opdump.adapters.torch import naming
from opdump.errors import DumpPathError
from opdump.plan import DumpPlan

LAYOUTS: dict[str, dict[str, Any]] = {
    "sync": {"layout": "mindspore-2.3", "saved_data": "full"},
    "sync 2.10": {"layout": "mindspore-2.10"},
    "sync statistic": {"layout": "mindspore-2.3", "saved_data": "statistic"},
    "async bin": {"layout": "mindspore-async", "file_format": "bin"},
    "async npy": {"layout": "mindspore-async", "file_format": "npy", "saved_data": "full"},
    "acl": {"layout": "acl", "file_format": "bin", "dialect": "acl"},
    "acl statistic": {"layout": "acl", "file_format": "bin", "dialect": "acl", "saved_data": "statistic"},
    "acl overflow": {"layout": "acl", "file_format": "bin", "dialect": "acl", "captures": "overflow"},
    "async overflow": {"layout": "mindspore-async", "file_format": "bin", "captures": "overflow"},
    "acl exception": {"layout": "acl", "file_format": "bin", "dialect": "acl", "captures": "exception"},
}
DATA = [name for name, settings in LAYOUTS.items() if "captures" not in settings]
OnStep = Callable[[int], None]


def _train(on_step: OnStep = lambda step: None, steps: int = 5) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        on_step(step)
        optimizer.zero_grad()
        (torch.full((64, 64), 3e38).relu() * 10).sum()
        with suppress(RuntimeError):
            torch.ones(64, 64) @ torch.ones(63, 3)
        loss = model(torch.full((50, 64), 0.5)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A separate file system with 16 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=16m", "none", str(place)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while file.write(b"0" * 4096):
            pass


def _told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


def _check_what_reads(root: Path) -> opdump.Catalog:
    catalog = opdump.open(root)
    for record in catalog.tensors():
        if record.payload is not None:
            assert record.payload.to_host().shape == record.shape
    return catalog


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_full_disk_is_reported_and_does_not_end_the_training(
    layout: str, small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = _train()
    root = small_disk / "dump"
    filler = small_disk / "filler"

    def fill(step: int) -> None:
        if step == 2:
            with pytest.raises(OSError, match="No space left"):
                _fill(filler)

    with opdump.capture(DumpPlan(path=root, **LAYOUTS[layout])) as dump:
        assert _train(fill) == expected
    report = dump.report
    assert report is not None
    assert len(_told(caplog)) == 1
    assert report.failure in _told(caplog)[0]
    assert "free space" in report.failure
    assert not list(root.rglob("*.part"))
    assert not any(run.complete for run in _check_what_reads(root).runs)
    filler.unlink()
    with opdump.capture(DumpPlan(path=root, **LAYOUTS["sync statistic"])) as later:
        _train(steps=1)
    assert later.report is not None
    assert later.report.failure == ""


@pytest.mark.parametrize("layout", DATA)
def test_64_descriptors_are_enough(layout: str, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 20
    root = tmp_path / "dump"
    with opdump.capture(DumpPlan(path=root, **LAYOUTS[layout])) as dump:
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken + 64 - 20, before[1]))
        try:
            _train(steps=3)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert dump.report is not None
    assert dump.report.failure == ""
    assert not _check_what_reads(root).problems


@pytest.mark.parametrize("layout", DATA)
def test_a_directory_that_is_made_again_under_a_running_dump_stays_empty(
    layout: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = _train()
    root = tmp_path / "dump"

    def made_again(step: int) -> None:
        if step == 2:
            hidden = root.rename(tmp_path / "dump that was")
            shutil.rmtree(hidden, ignore_errors=True)
            root.mkdir()

    with opdump.capture(DumpPlan(path=root, **LAYOUTS[layout])) as dump:
        assert _train(made_again) == expected
    assert dump.report is not None
    assert len(_told(caplog)) == 1
    assert "removed or replaced" in dump.report.failure
    assert list(root.rglob("*")) == []


@pytest.mark.parametrize("layout", DATA)
def test_a_rename_that_fails_is_reported(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = _train()
    root = tmp_path / "dump"

    def failing(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def fail(step: int) -> None:
        if step == 2:
            monkeypatch.setattr(os, "replace", failing)

    with opdump.capture(DumpPlan(path=root, **LAYOUTS[layout])) as dump:
        assert _train(fail) == expected
    monkeypatch.undo()
    assert dump.report is not None
    assert len(_told(caplog)) == 1
    assert "Input/output error" in dump.report.failure
    assert not list(root.rglob("*.part"))
    assert not any(run.complete for run in _check_what_reads(root).runs)


@pytest.mark.parametrize("layout", DATA)
def test_a_clock_that_goes_backwards_changes_no_order(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = LAYOUTS[layout]
    with opdump.capture(DumpPlan(path=tmp_path / "plain", **settings)):
        expected = _train(steps=3)
    started = time.time_ns()
    turned = iter(range(started, 0, -(10**9)))
    monkeypatch.setattr(naming, "time_ns", lambda: next(turned))
    monkeypatch.setattr(time, "time_ns", lambda: next(turned))
    monkeypatch.setattr(time, "time", lambda: next(turned) / 1e9)
    with opdump.capture(DumpPlan(path=tmp_path / "turned", **settings)) as dump:
        assert _train(steps=3) == expected
    monkeypatch.undo()
    assert dump.report is not None
    assert dump.report.failure == ""
    found, plain = (_check_what_reads(tmp_path / name) for name in ("turned", "plain"))
    assert not found.problems
    for step in range(3):
        assert [op.op_name for op in found.ops(step=step)] == [op.op_name for op in plain.ops(step=step)]


@pytest.mark.parametrize("layout", ["sync", "acl"])
def test_an_index_that_another_program_locks_is_reported_as_locked(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opdump.index.writer._PATIENCE_SECONDS", 0.1)
    expected = _train()
    root = tmp_path / "dump"
    held: list[sqlite3.Connection] = []

    def hold(step: int) -> None:
        if step == 2:
            for index in root.rglob("index.sqlite"):
                database = sqlite3.connect(index, isolation_level=None)
                database.execute("BEGIN")
                database.execute("SELECT COUNT(*) FROM runs").fetchone()
                held.append(database)

    with opdump.capture(DumpPlan(path=root, **LAYOUTS[layout])) as dump:
        assert _train(hold) == expected
    for database in held:
        database.close()
    assert held
    assert dump.report is not None
    assert "another program" in dump.report.failure
    assert "free space" not in dump.report.failure


@pytest.mark.parametrize("layout", DATA)
def test_two_runs_at_once_in_one_directory_are_distinguished(layout: str, tmp_path: Path) -> None:
    root = tmp_path / "dump"
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import opdump, json\n"
        "from pathlib import Path\n"
        "from opdump.plan import DumpPlan\n"
        "from tests.torch.test_faults_of_the_system import LAYOUTS, _train\n"
        "with opdump.capture(DumpPlan(path=Path(sys.argv[2]), **LAYOUTS[sys.argv[3]])) as dump:\n"
        "    print('begun', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    _train(steps=3)\n"
        "print(json.dumps([dump.report.failure, dump.report.files_lost]))\n"
    )
    here = str(Path(__file__).parents[2])
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", program, here, str(root), layout],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for run in runs:
        assert run.stdout is not None
        assert run.stdout.readline() == "begun\n"
    ended = [run.communicate("go\n", timeout=900)[0] for run in runs]
    assert [text.strip() for text in ended] == ['["", 0]'] * 2
    # They share one index, or each has its own directory.
    complete = 0
    for index in root.rglob("index.sqlite"):
        database = sqlite3.connect(index)
        complete += database.execute("SELECT COUNT(*) FROM runs WHERE ended IS NOT NULL").fetchone()[0]
        database.close()
    assert complete == 2


@pytest.mark.parametrize("on_error", ["continue", "stop"])
@pytest.mark.parametrize("place", ["graphs", "execution_order"])
def test_a_graph_that_cannot_be_written_obeys_on_error(place: str, on_error: Any, tmp_path: Path) -> None:
    root = tmp_path / "dump"
    expected, found = _train(steps=2), []

    def in_the_way(step: int) -> None:
        if step == 0:
            (root / "rank_0").mkdir(parents=True, exist_ok=True)
            (root / "rank_0" / place).write_text("in its place")

    raised = ""
    try:
        with opdump.capture(DumpPlan(path=root, layout="mindspore-2.3"), on_error=on_error) as dump:
            found = _train(in_the_way, steps=2)
    except DumpPathError as error:
        raised = str(error)
    assert dump.report is not None
    assert f"rank_0/{place}" in dump.report.failure
    assert raised == (dump.report.failure if on_error == "stop" else "")
    assert found == (expected if on_error == "continue" else [])
    assert not any(run.complete for run in _check_what_reads(root).runs)
