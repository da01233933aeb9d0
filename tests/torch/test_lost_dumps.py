"""A dump that can no longer be written, or memory that ends: the training continues without it, or is stopped; the loss is reported."""

from __future__ import annotations

import json
import logging
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

import opdump
from opdump.adapters.torch.dispatch import CaptureMode
from opdump.errors import DumpPathError, IncompleteCaptureError
from opdump.plan import DumpPlan
from tests.torch.killed_programs import LAYOUTS

EVERY_LAYOUT: dict[str, dict[str, Any]] = {
    "sync": {"layout": "mindspore-2.3"},
    "sync 2.10": {"layout": "mindspore-2.10", "save_kernel_args": True},
    "sync full": {"layout": "mindspore-2.3", "saved_data": "full"},
    "sync statistic": {"layout": "mindspore-2.3", "saved_data": "statistic"},
    "async bin": {"layout": "mindspore-async", "file_format": "bin", "saved_data": "full"},
    "async npy": {"layout": "mindspore-async", "file_format": "npy"},
    "acl": {"layout": "acl", "file_format": "bin", "dialect": "acl"},
    "acl statistic": {"layout": "acl", "file_format": "bin", "dialect": "acl", "saved_data": "statistic"},
}
OnStep = Callable[[int], None]


def _train(on_step: OnStep = lambda step: None, steps: int = 5) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        on_step(step)
        optimizer.zero_grad()
        loss = model(torch.full((50, 64), 0.5)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@contextmanager
def _limited(which: int, value: int) -> Iterator[None]:
    before = resource.getrlimit(which)
    resource.setrlimit(which, (value, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)


class Fault:
    """Causes the fault in one step, until the block ends."""

    def __init__(self, kind: str, root: Path, step: int, patch: pytest.MonkeyPatch) -> None:
        self._kind, self._root, self._step, self._patch = kind, root, step, patch
        self._limit: Any = None

    def __enter__(self) -> OnStep:
        return self.strike

    def __exit__(self, *_: object) -> None:
        if self._limit is not None:
            self._limit.__exit__(None, None, None)
        self._patch.undo()

    def strike(self, step: int) -> None:
        if step != self._step:
            return
        if self._kind == "full disk":
            self._limit = _limited(resource.RLIMIT_FSIZE, 2000)
        elif self._kind == "open files":
            # Below all open descriptors, so that a writer that closes one cannot open another.
            self._limit = _limited(resource.RLIMIT_NOFILE, 3)
        elif self._kind == "memory":
            self._patch.setattr(os, "writev", _no_memory)
            self._patch.setattr(os, "write", _no_memory)
        elif self._kind == "index":
            for index in self._root.rglob("index.sqlite"):
                index.write_bytes(b"no database" * 1000)
        else:
            # Renamed first, because writers are at work in it.
            hidden = self._root.rename(self._root.with_name(f"{self._root.name} that was"))
            shutil.rmtree(hidden, ignore_errors=True)
            if self._kind == "file":
                self._root.write_text("in its place")
        if self._limit is not None:
            self._limit.__enter__()


def _no_memory(*_: object) -> int:
    raise MemoryError


FAULTS = ["full disk", "open files", "memory", "index", "gone", "file"]


def _told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


@pytest.mark.parametrize("layout", EVERY_LAYOUT)
@pytest.mark.parametrize("kind", FAULTS)
def test_a_training_goes_on_without_its_dump_and_the_loss_is_reported(
    tmp_path: Path, layout: str, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = _train()
    root = tmp_path / "dump"
    with Fault(kind, root, 2, monkeypatch) as on_step:
        with opdump.capture(DumpPlan(path=root, **EVERY_LAYOUT[layout])) as dump:
            losses = _train(on_step)
            assert len(_told(caplog)) <= 1
        report = dump.report
    assert losses == expected
    assert report is not None
    told = _told(caplog)
    assert len(told) == 1, "once, and at once"
    assert report.failure
    assert report.failure in told[0]
    assert not any(record.exc_info for record in caplog.records), "it is no defect of opdump"
    assert "iteration" not in report.failure or "dump less" in report.failure
    assert report.executed == report.captured + sum(report.skipped.values())
    assert report.skipped.get("not written", 0) or report.files_lost or report.steps == (0, 1, 2, 3, 4)
    with pytest.raises(IncompleteCaptureError, match="incomplete"):
        report.raise_for_gaps()
    if kind in ("gone", "file"):
        assert not root.is_dir(), "it is not made again"
        return
    if kind == "index":
        return
    catalog = opdump.open(root)
    assert not any(run.complete for run in catalog.runs)
    assert set(report.steps) <= set(catalog.steps)
    for step in report.steps[:2]:
        for record in catalog.tensors(step=step):
            if record.payload is not None:
                assert record.payload.to_host().shape == record.shape
    assert not list(root.rglob("*.part"))


@pytest.mark.parametrize("layout", ["sync full", "async bin", "acl"])
@pytest.mark.parametrize("kind", FAULTS)
def test_with_stop_the_cause_is_raised_in_the_training(
    tmp_path: Path, layout: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "dump"
    with (
        Fault(kind, root, 2, monkeypatch) as on_step,
        pytest.raises(DumpPathError) as raised,
        opdump.capture(DumpPlan(path=root, **EVERY_LAYOUT[layout]), on_error="stop") as dump,
    ):
        _train(on_step)
    assert dump.report is not None
    assert dump.report.failure == str(raised.value)


def test_strict_stops_unless_the_caller_says_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(strict: bool, on_error: Literal["continue", "stop"] | None, name: str) -> int:
        reached = []
        root = tmp_path / name
        with Fault("gone", root, 1, monkeypatch) as strike:

            def on_step(step: int) -> None:
                reached.append(step)
                strike(step)

            with (
                suppress(DumpPathError, IncompleteCaptureError),
                opdump.capture(DumpPlan(path=root), strict=strict, on_error=on_error),
            ):
                _train(on_step)
        return len(reached)

    assert lost(False, None, "a") == 5
    assert lost(True, None, "b") < 5
    assert lost(True, "continue", "c") == 5
    assert lost(False, "stop", "d") < 5


@pytest.mark.parametrize("captures", ["overflow", "exception", "watch"])
def test_every_mode_goes_on(tmp_path: Path, captures: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "dump"
    watched = torch.zeros(3)
    modes: dict[str, dict[str, Any]] = {
        "overflow": {"overflow": True},
        "exception": {"on_exception": True},
        "watch": {"watch": {"x": watched}},
    }

    def program(fault: OnStep) -> list[float]:
        found = []
        watched.zero_()
        for step in range(4):
            fault(step)
            x = torch.full((40, 40), 3e38).relu()
            found.append((x * 10).sum().item())
            with suppress(RuntimeError):
                torch.ones(30, 30) @ torch.ones(29, 3)
            watched.add_(1)
        return found

    plain = program(lambda step: None)
    with Fault("file", root, 2, monkeypatch) as on_step, opdump.capture(path=root, **modes[captures]) as dump:
        captured = program(on_step)
    assert captured == plain
    assert dump.report is not None
    assert dump.report.failure


def test_what_fails_at_the_very_end_is_reported_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for on_error in ("continue", "stop"):
        caplog.clear()
        root = tmp_path / on_error
        with Fault("full disk", root, 9, monkeypatch) as strike:
            manager = opdump.capture(DumpPlan(path=root, saved_data="statistic"), on_error=on_error)
            dump = manager.__enter__()
            _train()
            strike(9)
            if on_error == "stop":
                with pytest.raises(DumpPathError):
                    manager.__exit__(None, None, None)
            else:
                manager.__exit__(None, None, None)
                assert len(_told(caplog)) == 1
        assert dump.report is not None
        assert dump.report.failure


def test_a_dump_is_whole_where_no_thread_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    for name, settings in EVERY_LAYOUT.items():
        with opdump.capture(DumpPlan(path=tmp_path / name, **settings)) as dump:
            expected = _train(steps=2)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refused)
            with opdump.capture(DumpPlan(path=tmp_path / f"{name} alone", **settings)) as alone:
                assert _train(steps=2) == expected
        assert dump.report is not None
        assert alone.report is not None
        assert alone.report.failure == ""
        assert (alone.report.files, alone.report.tensors) == (dump.report.files, dump.report.tensors)


def test_a_capture_after_a_lost_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Fault("gone", tmp_path / "a", 1, monkeypatch) as on_step, opdump.capture(DumpPlan(path=tmp_path / "a")):
        _train(on_step)
    with opdump.capture(DumpPlan(path=tmp_path / "b")) as dump:
        _train(steps=2)
    assert dump.report is not None
    assert (dump.report.failure, dump.report.files_lost) == ("", 0)


@pytest.mark.parametrize("layout", ["sync", "async bin", "acl"])
@pytest.mark.parametrize("place", ["before", "after"])
def test_a_defect_at_one_operator_loses_that_operator_and_not_the_dump(
    tmp_path: Path, layout: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _train()
    name = "_read_inputs" if place == "before" else "_record_outputs"
    real = getattr(CaptureMode, name)

    def failing(mode: CaptureMode, *arguments: Any) -> Any:
        assert not any(
            getattr(each, "op_type", "") == "relu" for each in (arguments[0], getattr(arguments[0], "op", None))
        ), "literal"
        return real(mode, *arguments)

    monkeypatch.setattr(CaptureMode, name, failing)
    with opdump.capture(DumpPlan(path=tmp_path, **EVERY_LAYOUT[layout])) as dump:
        losses = _train()
    assert losses == expected
    report = dump.report
    assert report is not None
    assert not report.failure
    assert report.steps == (0, 1, 2, 3, 4)
    (told,) = [text for text in report.warnings if "defect" in text]
    assert "relu" in told
    assert "5 executions" in told
    assert "AssertionError: literal" in told
    filed = Counter((record.op.op_type, record.op.step) for record in opdump.open(tmp_path).tensors())
    assert [filed["addmm", step] for step in range(5)] == [8] * 5
    assert [filed["threshold_backward", step] for step in range(5)] == [filed["threshold_backward", 0]] * 5


PROGRAM = """
import json, resource, sys
from pathlib import Path
import torch
import opdump
from opdump.errors import DumpPathError
from opdump.plan import DumpPlan

torch.set_num_threads(1)
large = torch.ones(2**26)
weight = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)

def train(limited):
    losses = []
    for step in range(4):
        if step == 2 and limited:
            size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + 2**27, resource.RLIM_INFINITY))
        optimizer.zero_grad()
        loss = (weight * (large.amax() if step == 2 else 2.0)).exp().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses

plain = train(False)
with torch.no_grad():
    weight.fill_(1)
settings = json.loads(sys.argv[2])
raised, losses = "", []
try:
    with opdump.capture(DumpPlan(path=Path(sys.argv[1]), **settings), on_error=sys.argv[3]) as dump:
        losses = train(True)
except DumpPathError as error:
    raised = str(error)
report = dump.report
counted = report.captured + sum(report.skipped.values())
print(json.dumps([losses == plain, raised, report.failure, report.skipped, report.executed == counted]))
"""


def _limited_memory(root: Path, layout: str, on_error: str) -> Any:
    settings = json.dumps(LAYOUTS[layout])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(root), settings, on_error],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return [*json.loads(done.stdout), done.stderr]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the size of a process is read from /proc")
@pytest.mark.parametrize("layout", ["sync-2.3", "async", "acl"])
def test_a_training_goes_on_where_the_copy_of_a_tensor_does_not_fit(tmp_path: Path, layout: str) -> None:
    root = tmp_path / "dump"
    is_same, raised, failure, skipped, counts_agree, told = _limited_memory(root, layout, "continue")
    assert is_same
    assert raised == ""
    assert "memory" in failure
    assert "dump less" in failure
    assert told.count(failure) == 1
    assert counts_agree
    assert skipped["not written"]
    catalog = opdump.open(root)
    assert catalog.steps[:2] == (0, 1)
    assert not any(run.complete for run in catalog.runs)
    for record in catalog.tensors(step=1):
        assert record.payload is None or record.payload.to_host().shape == record.shape


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the size of a process is read from /proc")
@pytest.mark.parametrize("layout", ["sync-2.3", "acl"])
def test_with_stop_the_want_of_memory_is_raised_by_its_name(tmp_path: Path, layout: str) -> None:
    _, raised, failure, _, counts_agree, _ = _limited_memory(tmp_path / "dump", layout, "stop")
    assert "memory" in raised
    assert failure == raised
    assert counts_agree
