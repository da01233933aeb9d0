"""A dump within limits: what is left out when a limit is reached, and that the program is not affected."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import opdump
from opdump.errors import ConfigError
from opdump.layouts.mindspore_sync.writer import SyncWriter
from opdump.plan import DumpPlan
from opdump.recorder import capture_errors
from opdump.sink import DirectorySink
from tests.cli.programs import opdump as run_opdump

STATISTICS: dict[str, Any] = {"saved_data": "statistic", "statistic_category": ["max", "min", "l2norm"]}


def train(steps: int = 40, width: int = 64) -> list[torch.Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x = torch.randn(4, width)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return losses


def test_what_runs_after_the_last_step_belongs_to_it_however_much_was_filed_before(tmp_path: Path) -> None:
    """A step takes 60 kB, and 40 kB may wait until their step is known."""
    bounds: list[dict[str, Any]] = [{}, {"max_memory": 80_000}]
    for number, bound in enumerate(bounds):
        with opdump.capture(path=tmp_path / str(number), saved_data="tensor", **bound) as dump:
            train(4)
        assert dump.report is not None
        assert dump.report.steps == (0, 1, 2, 3)
    names = [[op.op_name for op in opdump.open(tmp_path / each).ops(step=3)] for each in ("0", "1")]
    assert names[0] == names[1]
    assert "clone" in names[0][-1]


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def size_of_first_step(path: Path, layout: str = "mindspore-2.3") -> int:
    """Mostly graphs, which contain each line of a call stack, and an index."""
    with opdump.capture(DumpPlan(path=path, layout=layout, saved_data="statistic")):
        train(1)
    return size_of(path)


def test_a_disk_bound_leaves_out_elements_then_steps_then_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plain = train(60)
    most = 5 * size_of_first_step(tmp_path / "first") // 4 + 300_000
    with opdump.capture(path=tmp_path / "d", saved_data="full", max_disk=most) as dump:
        captured = train(400)
    assert all(torch.equal(one, other) for one, other in zip(plain, captured[:60], strict=True))
    assert size_of(tmp_path / "d") <= most
    report = dump.report
    assert report is not None
    stages = [each.now for each in report.degraded]
    assert stages[0] == "statistics"
    assert stages[1] == "every 2"
    assert stages[-1] == "off"
    assert {each.bound for each in report.degraded} == {"max_disk"}
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        f"opdump: {each}" for each in report.degraded
    ]
    # Missing files are recorded as such.
    every, last = 1, 399
    expected = []
    changes = {each.step: each.now for each in report.degraded}
    for step in range(400):
        now = changes.get(step, "")
        every = int(now.removeprefix("every ")) if now.startswith("every") else every
        if now == "off":
            last = step - 1
        if step <= last and step % every == 0:
            expected.append(step)
    assert list(report.steps) == expected
    catalog = opdump.open(tmp_path / "d")
    assert not catalog.problems
    assert sorted({op.step for op in catalog.ops()}) == expected
    assert catalog.runs[0].degraded == report.degraded
    assert catalog.runs[0].complete
    first = report.degraded[0].step
    with_elements = {record.op.step for record in catalog.tensors() if record.payload is not None}
    assert with_elements <= set(range(first + 1))
    assert all(record.statistics for record in catalog.tensors(step=expected[-1]) if not record.skip)


def test_what_a_bound_leaves_is_the_same_as_in_a_dump_without_a_bound(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path / "all", **STATISTICS):
        train(20)
    most = size_of(tmp_path / "all") * 9 // 10
    with opdump.capture(path=tmp_path / "bound", max_disk=most, **STATISTICS) as dump:
        train(20)
    assert dump.report is not None
    assert dump.report.degraded
    for step in dump.report.steps:
        tables = [
            [(op.op.op_name, {slot: dict(each.statistics) for slot, each in op.outputs.items()}) for op in each]
            for each in (opdump.open(tmp_path / name).executions(step=step) for name in ("all", "bound"))
        ]
        assert str(tables[0]) == str(tables[1]) != "[]"


@pytest.mark.parametrize(
    "settings",
    [
        {"layout": "mindspore-2.10", "saved_data": "full"},
        {"layout": "acl", "file_format": "bin", "saved_data": "tensor"},
        {"layout": "mindspore-async", "saved_data": "tensor"},
        {"layout": "packed", "saved_data": "full"},
    ],
)
def test_a_disk_bound_holds_in_each_layout(settings: dict[str, Any], tmp_path: Path) -> None:
    most = 5 * size_of_first_step(tmp_path / "first", settings["layout"]) // 4 + 300_000
    with opdump.capture(DumpPlan(path=tmp_path / "d", max_disk=most, **settings)) as dump:
        train(60)
    assert dump.report is not None
    assert dump.report.degraded[0].now == "statistics"
    assert size_of(tmp_path / "d") <= most
    assert opdump.open(tmp_path / "d").runs[0].degraded == dump.report.degraded


def test_a_disk_without_room_takes_nothing_and_the_program_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((1, 1, 10**9, 900, 900, 0, 0, 0, 0, 255)))
    with opdump.capture(path=tmp_path / "d", min_free_disk="1kB", **STATISTICS) as dump:
        losses = train(3)
    assert all(torch.equal(one, other) for one, other in zip(losses, train(3), strict=True))
    assert dump.report is not None
    assert dump.report.executed == 0
    assert dump.report.nothing is not None
    assert "900 B are free, and 1.00 kB must stay free (min_free_disk)" in dump.report.nothing.reason


def test_free_space_that_others_take_ends_a_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter(range(10**8, 0, -(10**6)))
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((1, 1, 10**9, *[next(free)] * 2, 0, 0, 0, 0, 255)))
    with opdump.capture(path=tmp_path / "d", saved_data="full", min_free_disk="50MB") as dump:
        train(60)
    assert dump.report is not None
    stages = [each.now for each in dump.report.degraded]
    assert stages[:2] == ["statistics", "every 2"]
    assert stages[-1] == "off"


def test_a_slow_disk_holds_up_the_program_before_memory_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 0
    write_array = DirectorySink.write_array
    has_begun = threading.Event()

    def slowly(self: DirectorySink, relative: str, array: Any) -> None:
        nonlocal most
        write_array(self, relative, array)
        most = max(most, self.bytes_queued)
        has_begun.set()

    monkeypatch.setattr(DirectorySink, "write_array", slowly)
    files = SyncWriter.__init__

    def opened(self: SyncWriter, *arguments: Any) -> None:
        files(self, *arguments)
        write = self.sink._state.write

        def slow(path: str, buffers: Any) -> None:
            has_begun.wait()
            time.sleep(0.001)
            write(path, buffers)

        monkeypatch.setattr(self.sink._state, "write", slow)

    monkeypatch.setattr(SyncWriter, "__init__", opened)
    with opdump.capture(path=tmp_path / "d", saved_data="tensor", max_memory="80kB") as dump:
        train(4)
    assert dump.report is not None
    assert not dump.report.degraded
    assert dump.report.steps == (0, 1, 2, 3)
    assert 16_000 < most <= 40_000


def test_a_tensor_that_does_not_fit_into_memory_leaves_its_statistics(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path / "d", saved_data="full", max_memory="20kB") as dump:
        train(3)  # a weight takes 16 kB
    assert dump.report is not None
    (only,) = dump.report.degraded
    assert (only.step, only.now, only.bound) == (0, "statistics", "max_memory")
    assert not [file for file in (tmp_path / "d").rglob("*.npy") if file.stat().st_size > 10_000]
    assert dump.report.steps == (0, 1, 2)


def test_a_ring_keeps_as_many_steps_as_memory_has_room_for(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path / "d", ring=20, max_memory="400kB", **STATISTICS) as dump:
        train(30)
        dump.trigger()
    assert dump.report is not None
    (only,) = dump.report.degraded
    assert only.now.startswith("ring ")
    kept = int(only.now.removeprefix("ring "))
    assert 1 < kept < 20
    assert len(dump.report.steps) == kept
    assert dump.report.steps[-1] == 29


def test_a_ring_of_which_no_step_fits_ends_the_dump(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path / "d", ring=2, max_memory="10kB", **STATISTICS) as dump:
        train(5)
    assert dump.report is not None
    assert [each.now for each in dump.report.degraded] == ["off"]
    assert dump.report.nothing is not None
    assert "a step of the ring does not fit into half of 10.0 kB" in dump.report.nothing.reason


def test_a_ring_within_a_disk_bound(tmp_path: Path) -> None:
    def fire(path: Path, steps: int, **settings: Any) -> opdump.Dump:
        with opdump.capture(path=path, ring=2, **settings, **STATISTICS) as dump:
            for step in range(steps):
                if step % 4 == 0:
                    dump.trigger()
                torch.ones(3).square().sum()
                dump.step()
        return dump

    fire(tmp_path / "first", 60)
    most = size_of(tmp_path / "first")
    report = fire(tmp_path / "d", 200, max_disk=most).report
    assert report is not None
    assert report.degraded[-1].now == "off"
    assert size_of(tmp_path / "d") <= most
    assert opdump.open(tmp_path / "d").runs[0].degraded == report.degraded


def test_show_and_check_list_what_was_left_out(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path / "d", max_disk="1kB", **STATISTICS):
        train(4)
    said = "from step 1 on nothing is recorded: "
    for command in (["show"], ["check"], ["check", "--step", "2"]):
        ended = run_opdump(*command, str(tmp_path / "d"), cwd=tmp_path)
        assert said in ended.stdout + ended.stderr, command
    shown = run_opdump("show", "--json", str(tmp_path / "d"), cwd=tmp_path)
    assert json.loads(shown.stdout)["runs"][0]["degraded"][-1]["now"] == "off"


def test_time_is_measured_and_reported(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path / "d", **STATISTICS) as dump:
        train(3)
    report = dump.report
    assert report is not None
    assert report.capture_seconds is not None
    assert 0 < report.capture_seconds < report.seconds
    assert report.overhead == pytest.approx(report.capture_seconds / (report.seconds - report.capture_seconds))


def test_the_time_of_the_programs_operators_is_not_counted_as_capture(tmp_path: Path) -> None:
    """One operator takes far longer than everything else, and its time counts for the program."""
    big = torch.randn(1200, 1200)
    with opdump.capture(path=tmp_path / "d", kernels=["nothing-of-this-name"], **STATISTICS) as dump:
        began = time.perf_counter()
        for _ in range(10):
            big @ big
        took = time.perf_counter() - began
    assert dump.report is not None
    assert dump.report.capture_seconds is not None
    assert dump.report.capture_seconds < took


def test_steps_are_left_out_where_time_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]

    def tick() -> int:
        now[0] += 1_000_000
        return now[0]

    monkeypatch.setattr(capture_errors, "perf_counter_ns", tick)
    plain = train(100)
    with opdump.capture(path=tmp_path / "d", max_overhead="50%", **STATISTICS) as dump:
        captured = train(100)
    assert all(torch.equal(one, other) for one, other in zip(plain, captured, strict=True))
    assert dump.report is not None
    assert dump.report.degraded[0].now.startswith("every ")
    assert {each.bound for each in dump.report.degraded} == {"max_overhead"}
    assert len(dump.report.steps) < 100


def test_an_adapter_without_a_clock_has_no_time_bound(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    with (
        pytest.raises(ConfigError, match="captures of jax cannot measure their own time"),
        opdump.capture(path=tmp_path / "d", framework="jax", max_overhead=0.1),
    ):
        raise AssertionError("the capture began")


SCRIPT = """
import os, sys, torch
from torch import multiprocessing
def work(rank):
    torch.manual_seed(rank)
    net = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(40):
        optimizer.zero_grad(); net(torch.ones(4, 64)).square().mean().backward(); optimizer.step()
if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    children = [multiprocessing.Process(target=work, args=(rank,)) for rank in range(2)]
    for child in children: child.start()
    for child in children: child.join()
"""


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = directory / "train.py"
    script.write_text(SCRIPT)
    return run_opdump("run", "--json", "--path", str(directory / "d"), *arguments, str(script), cwd=directory)


def test_processes_share_a_disk_bound(tmp_path: Path) -> None:
    ended = run(tmp_path, "--full", "--max-disk", "1.5MB")
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stderr.splitlines()[-1])
    assert len(told["children"]) == 2
    degraded = [run.degraded for run in opdump.open(tmp_path / "d").runs]
    assert all(each and each[0].now == "statistics" for each in degraded)
    assert "from step" in " ".join(told["warnings"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--max-disk", "20PB"), "max_disk: found '20PB', expected a size above 0 such as \"20GB\""),
        (("--min-free-disk", "0"), "min_free_disk: found '0', expected a size"),
        (("--max-memory", "much"), "max_memory: found 'much', expected a size"),
        (("--max-overhead", "10"), "max_overhead: found '10', expected a share above 0 such as \"10%\""),
    ],
)
def test_a_wrong_bound_is_reported_before_the_program_runs(
    arguments: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    ended = run(tmp_path, *arguments)
    assert ended.returncode == 1
    assert says in ended.stderr
    assert not (tmp_path / "d").exists()
