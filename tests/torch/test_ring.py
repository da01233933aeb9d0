"""The last steps are kept in memory and written when a trigger fires (`ring`), and every Nth step is recorded (`every`)."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import opdump
from opdump.errors import CaptureStateError, ConfigError
from opdump.plan import DumpPlan, StepSet
from tests.cli.programs import opdump as run_opdump
from tests.torch.dump_comparison import assert_same_dumps
from tests.torch.forced_device import PassingMode, forced_capture
from tests.torch.programs import PROGRAMS

Happens = Callable[[int, torch.Tensor], torch.Tensor]
STATISTICS: dict[str, Any] = {"saved_data": "statistic", "statistic_category": ["max", "min", "l2norm"]}


def nothing(_step: int, out: torch.Tensor) -> torch.Tensor:
    return out


def train(happens: Happens = nothing, steps: int = 10) -> list[torch.Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x = torch.randn(4, 8)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = happens(step, net(x)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return losses


def at(step: int, happens: Callable[[torch.Tensor], Any]) -> Happens:
    """A function that calls `happens` in this step; the result replaces the output unless it is None."""

    def call(now: int, out: torch.Tensor) -> torch.Tensor:
        given = happens(out) if now == step else None
        return out if given is None else given

    return call


def filed(path: Path) -> list[int]:
    return sorted({op.step for op in opdump.open(path).ops()})


def logarithm(out: torch.Tensor) -> torch.Tensor:
    return torch.log(out - 100)


def division(out: torch.Tensor) -> torch.Tensor:
    return out / torch.zeros(1)


def mask(out: torch.Tensor) -> torch.Tensor:
    out.detach().masked_fill(out.detach() < 1e9, float("-inf"))
    return out


@pytest.mark.parametrize(
    ("happens", "fired", "steps"),
    [
        (nothing, [], []),
        (at(5, mask), [], []),
        (at(5, logarithm), ["nan in step 5"], [3, 4, 5]),
        (at(5, division), ["inf in step 5"], [3, 4, 5]),
        (at(1, logarithm), ["nan in step 1"], [0, 1]),
        (at(9, logarithm), ["nan in step 9"], [7, 8, 9]),
    ],
)
def test_a_trigger_files_its_step_and_those_before(
    happens: Happens, fired: list[str], steps: list[int], tmp_path: Path
) -> None:
    with opdump.capture(path=tmp_path / "d", ring=3, **STATISTICS) as dump:
        train(happens)
    assert dump.report is not None
    assert list(dump.report.fired) == fired
    assert list(dump.report.steps) == steps
    if steps:
        assert filed(tmp_path / "d") == steps
    else:
        assert dump.report.captured == 0
        assert dump.report.nothing is not None
        assert "no trigger fired" in dump.report.nothing.reason
        assert not dump.report.nothing.is_gap
        assert not list((tmp_path / "d").rglob("*.csv"))
    assert dump.report.executed == dump.report.captured + sum(dump.report.skipped.values())


def test_what_is_filed_is_what_a_plain_dump_files(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path / "all", **STATISTICS):
        train(at(5, logarithm))
    with opdump.capture(path=tmp_path / "ring", ring=3, **STATISTICS):
        train(at(5, logarithm))
    for step in (3, 4, 5):
        tables = [opdump.open(tmp_path / name).executions(step=step) for name in ("all", "ring")]
        plain, kept = (
            [
                (one.op.op_name, one.op.order, {slot: dict(each.statistics) for slot, each in one.outputs.items()})
                for one in each
            ]
            for each in tables
        )
        assert str(plain) == str(kept) != "[]"


def test_the_answers_are_the_same(tmp_path: Path) -> None:
    plain = train(at(7, logarithm))
    with opdump.capture(path=tmp_path / "d", ring=2, **STATISTICS):
        captured = train(at(7, logarithm))
    assert all(
        torch.equal(one.view(torch.int32), other.view(torch.int32)) for one, other in zip(plain, captured, strict=True)
    )


def test_only_what_is_asked_for_fires(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path / "d", ring=3, triggers=["inf"], **STATISTICS) as dump:
        train(at(5, logarithm))
    assert dump.report is not None
    assert dump.report.fired == ()


def test_the_program_and_a_signal_fire_and_the_run_goes_on(tmp_path: Path) -> None:
    def happens(step: int, out: torch.Tensor) -> torch.Tensor:
        if step == 2:
            dump.trigger("a look")
        if step == 7:
            os.kill(os.getpid(), signal.SIGUSR1)
        return out

    before = signal.getsignal(signal.SIGUSR1)
    with opdump.capture(path=tmp_path / "d", ring=2, **STATISTICS) as dump:
        train(happens)
    assert signal.getsignal(signal.SIGUSR1) == before
    assert dump.report is not None
    assert dump.report.fired == ("a look", "signal")
    assert filed(tmp_path / "d") == [1, 2, 6, 7]


def test_an_exception_files_the_step_that_it_ended(tmp_path: Path) -> None:
    def fails(_: torch.Tensor) -> None:
        raise ValueError("boom")

    with (
        pytest.raises(ValueError, match="boom"),
        opdump.capture(path=tmp_path / "d", ring=2, **STATISTICS) as dump,
    ):
        train(at(6, fails))
    assert dump.report is not None
    assert dump.report.fired == ("exception: ValueError",)
    assert filed(tmp_path / "d") == [5, 6]


ELEMENTS: dict[str, Any] = {**STATISTICS, "saved_data": "full", "max_memory": "100MB"}


def contents(path: Path, step: int) -> list[object]:
    """Everything that a dump contains of a step, except times and file positions."""
    return [
        (
            one.op.op_name,
            one.op.order,
            [
                (each.io, each.slot, each.dtype, each.shape, dict(each.statistics), each.numpy().tobytes())
                for each in one.tensors
            ],
        )
        for one in opdump.open(path).executions(step=step)
    ]


@pytest.mark.parametrize("layout", ["mindspore-2.3", "packed"])
def test_elements_are_kept_too_and_are_those_of_a_plain_dump(layout: str, tmp_path: Path) -> None:
    made_before = torch.full((4, 1), 2.0)

    def happens(step: int, out: torch.Tensor) -> torch.Tensor:
        return at(5, logarithm)(step, out * made_before)

    with opdump.capture(path=tmp_path / "all", layout=layout, **ELEMENTS):
        train(happens)
    with opdump.capture(path=tmp_path / "ring", layout=layout, ring=3, **ELEMENTS) as dump:
        train(happens)
    assert dump.report is not None
    assert dump.report.degraded == ()
    assert filed(tmp_path / "ring") == [3, 4, 5]
    for step in (3, 4, 5):
        assert str(contents(tmp_path / "ring", step)) == str(contents(tmp_path / "all", step)) != "[]"
    constants = [
        [(each.name, each.numpy().tobytes()) for each in opdump.open(tmp_path / name).constants()]
        for name in ("all", "ring")
    ]
    assert constants[0] == constants[1] != []


def test_nothing_is_filed_of_elements_where_nothing_fires(tmp_path: Path) -> None:
    plain = train()
    with opdump.capture(path=tmp_path / "d", ring=3, **ELEMENTS):
        captured = train()
    assert all(torch.equal(one, other) for one, other in zip(plain, captured, strict=True))
    assert not list((tmp_path / "d").rglob("*.npy"))


def test_elements_that_the_program_writes_over_are_those_that_the_operator_had(tmp_path: Path) -> None:
    x = torch.zeros(4)
    with opdump.capture(path=tmp_path / "d", ring=2, **ELEMENTS) as dump:
        for step in range(3):
            x.add_(1)
            x.mul_(2)
            if step == 2:
                dump.trigger()
            dump.step()
        x.zero_()
    outputs = [each.outputs[0].numpy()[0] for each in opdump.open(tmp_path / "d").ops() if each.outputs]
    assert outputs == [3, 6, 7, 14]


def test_elements_of_a_device_are_kept_as_they_were(tmp_path: Path) -> None:
    def plan(name: str) -> DumpPlan:
        categories = ("max", "min", "l2norm")
        return DumpPlan(
            path=tmp_path / name, ring=2, max_memory=10**9, saved_data="full", statistic_category=categories
        )

    with forced_capture(plan("device")) as forced:
        PROGRAMS["convnet"](steps=2)
        forced.recorder.fire("a look")
        PROGRAMS["convnet"](steps=2)
    with PassingMode(), opdump.capture(plan("host")) as dump:
        PROGRAMS["convnet"](steps=2)
        dump.trigger("a look")
        PROGRAMS["convnet"](steps=2)
    assert assert_same_dumps(tmp_path / "device", tmp_path / "host") > 20
    assert filed(tmp_path / "device") == [1, 2]


@pytest.mark.parametrize(("room", "steps", "now"), [("770kB", [4, 5], "ring 2"), ("120kB", [3, 4, 5], "statistics")])
def test_if_elements_do_not_fit_the_ring_keeps_less_and_reports_it(
    room: str, steps: list[int], now: str, tmp_path: Path
) -> None:
    with opdump.capture(path=tmp_path / "d", ring=3, **{**ELEMENTS, "max_memory": room}) as dump:
        wide_training(dump, 5)
    assert dump.report is not None
    assert [each.now for each in dump.report.degraded] == [now]
    assert filed(tmp_path / "d") == steps
    with_elements = {each.op.step for each in opdump.open(tmp_path / "d") if each.payload is not None}
    assert with_elements == (set(steps) if now == "ring 2" else set())


def test_kept_steps_are_written_after_the_ring_stopped_taking_elements(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path / "d", ring=3, **ELEMENTS) as dump:
        for step in range(5):
            torch.ones(4).mul_(2)
            if step == 3:
                bounds = dump._parts.recording.recorder.bounds
                bounds._leave_elements(3, "max_overhead", "capture takes too long")
            if step == 4:
                dump.trigger()
            dump.step()
    assert filed(tmp_path / "d") == [2, 3, 4]
    assert {each.op.step for each in opdump.open(tmp_path / "d") if each.payload is not None} == {2, 3}


def wide_training(dump: opdump.Dump, fails: int) -> None:
    """Steps with about 150 kB of values each; the last one contains a NaN."""
    x = torch.ones(4000)
    for step in range(fails + 1):
        y = (x * 2).exp().tanh()
        if step == fails:
            y = torch.log(-y)
        torch.add(y, 1)
        dump.step()


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"saved_data": "full"}, "max_memory="),
        ({"saved_data": "full", "max_memory": 10**9, "layout": "mindspore-async"}, 'layout="packed"'),
        ({"save_kernel_args": True}, "save_kernel_args=False"),
        ({"captures": "overflow"}, 'captures="data"'),
    ],
)
def test_a_setting_that_a_ring_cannot_keep_says_what_to_write_instead(asked: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=f"ring is 3.*{told}"):
        DumpPlan(path=Path("d"), **{"saved_data": "statistic", "ring": 3, **asked})


def test_what_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ring is 3, and saved_data is 'full'.*--max-memory"):
        opdump.capture(path=tmp_path / "d", ring=3, saved_data="full").__enter__()
    with pytest.raises(ConfigError, match=r"triggers is .*nam.*'signal'"):
        opdump.capture(path=tmp_path / "d", ring=3, triggers=["nam"], **STATISTICS).__enter__()
    with (
        opdump.capture(path=tmp_path / "d", **STATISTICS) as dump,
        pytest.raises(CaptureStateError, match="begin it with ring=3"),
    ):
        dump.trigger()


@pytest.mark.parametrize(
    ("asked", "steps"),
    [({"every": 4}, [0, 4, 8]), ({"every": 4, "iteration": "3-9"}, [4, 8]), ({"iteration": "all every 5"}, [0, 5])],
)
def test_each_nth_step_is_filed(asked: dict[str, Any], steps: list[int], tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path / "d", **STATISTICS, **asked) as dump:
        train()
    assert dump.report is not None
    assert list(dump.report.steps) == filed(tmp_path / "d") == steps


def test_a_cadence_that_no_step_matched_is_reported(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path / "d", every=10, initial_iteration=5, **STATISTICS) as dump:
        train(steps=3)
    assert dump.report is not None
    assert dump.report.nothing is not None
    assert "selects all every 10" in dump.report.nothing.reason


def test_a_ring_of_each_nth_step(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path / "d", ring=2, every=3, **STATISTICS):
        train(at(6, logarithm))
    assert filed(tmp_path / "d") == [3, 6]


def test_sets_of_steps_with_a_cadence() -> None:
    steps = StepSet.parse("5-20|33 every 10")
    assert [step for step in range(50) if step in steps] == [10, 20]
    assert steps.last == 20
    assert StepSet.parse(str(steps)) == steps
    assert steps.reaches(0, 10)
    assert not steps.reaches(11, 19)
    assert not steps.reaches(21, 90)
    assert StepSet.parse("all every 3").last is None
    with pytest.raises(ConfigError, match="none of the steps 1-3 is a multiple of 5"):
        StepSet.parse("1-3 every 5")
    with pytest.raises(ConfigError, match="every is 0"):
        StepSet.parse("all every 0")


def test_the_command_says_what_became_of_the_steps(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\nimport torch\n"
        "for step in range(6):\n    x = torch.ones(3, requires_grad=True)\n"
        "    torch.log(x - (5 if step == 4 and len(sys.argv) > 1 else 0)).sum().backward()\n"
    )

    def run(*arguments: str) -> str:
        done = run_opdump("run", "--json", "--ring", "2", "--path", str(tmp_path / "d"), *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stderr

    quiet = json.loads(run(str(script)).splitlines()[-1])
    assert quiet["fired"] == []
    assert "no trigger fired" in quiet["reason"]
    told = json.loads(run(str(script), "nan").splitlines()[-1])
    assert len(told["fired"]) == 1
    assert told["fired"][0].startswith("nan in step")
    refused = run_opdump("run", "--trigger", "nan", str(script), cwd=tmp_path)
    assert refused.returncode == 2
    assert "give --ring N" in refused.stderr


def spike(out: torch.Tensor) -> torch.Tensor:
    return out * 1000


@pytest.mark.parametrize("every", [1, 4])
def test_a_loss_that_leaps_up_files_its_step_and_those_before(every: int, tmp_path: Path) -> None:
    plain = train(at(12, spike), steps=16)
    settings = {**STATISTICS, "triggers": ["loss-spike"], "every": every}
    with opdump.capture(path=tmp_path / "d", ring=2, **settings) as dump:
        losses = train(at(12, spike), steps=16)
    assert all(torch.equal(one, other) for one, other in zip(plain, losses, strict=True))
    assert dump.report is not None
    (fired,) = dump.report.fired
    assert fired.startswith("loss-spike in step 12: ")
    assert filed(tmp_path / "d") == [12 - every, 12]
    assert "loss" not in str(dump.report.warnings)


def test_reading_the_loss_is_not_recorded_as_an_operator(tmp_path: Path) -> None:
    names = []
    for triggers in (["loss-spike"], []):
        with opdump.capture(path=tmp_path / str(triggers), ring=20, **STATISTICS, triggers=triggers) as dump:
            train(steps=3)
            dump.trigger()
        names.append([execution.op.op_name for execution in opdump.open(tmp_path / str(triggers)).executions()])
    assert names[0] == names[1] != []


def test_the_program_may_pass_its_loss(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path / "d", ring=1, **STATISTICS, triggers=["loss-spike"]) as dump:
        for step in range(12):
            torch.ones(3).sum()
            dump.loss(1.0 if step < 10 else 7.0)
            dump.step()
    assert dump.report is not None
    assert dump.report.fired == ("loss-spike in step 10: 7, the median before is 1",)
    assert filed(tmp_path / "d") == [10]


def test_a_loss_that_was_never_found_is_reported(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path / "d", ring=1, **STATISTICS, triggers=["loss-spike"]) as dump:
        torch.ones(3).sum()
    assert dump.report is not None
    assert any("dump.loss(value)" in text for text in dump.report.warnings)


def test_a_loss_without_its_trigger_is_refused(tmp_path: Path) -> None:
    with (
        opdump.capture(path=tmp_path / "d", ring=1, **STATISTICS) as dump,
        pytest.raises(CaptureStateError, match=r'triggers=\["loss-spike"\]'),
    ):
        dump.loss(1.0)
