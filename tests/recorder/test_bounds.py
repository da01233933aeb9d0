"""What is left out when limits are reached, and when a loss jumps up: the rules, tested with numbers."""

from __future__ import annotations

import math
import os
import random
from pathlib import Path
from typing import Any

import pytest

from opdump.degradation import Degradation, left_out_at, told
from opdump.errors import ConfigError
from opdump.plan import DumpPlan, StepSet
from opdump.plan.field_types import parse_share, parse_size
from opdump.recorder.bounds import Bounds
from opdump.recorder.capture_errors import CaptureClock
from opdump.recorder.live_checks import LossSpikes

MS = 1_000_000


class Run:
    """A run in which each recorded step writes this many bytes of elements and of statistics, and takes this much time."""

    def __init__(
        self, *, elements: int = 0, statistics: int = 0, program: int = 0, capture: int = 0, **plan: Any
    ) -> None:
        self.time = self.written = 0
        self.clock = CaptureClock(lambda: self.time)
        self.bounds = Bounds(DumpPlan(path=Path("/nowhere"), **plan), self.clock)
        self.bounds.begin(lambda: self.written, 0)
        self.elements, self.statistics, self.program, self.capture = elements, statistics, program, capture
        self.plan = self.bounds._plan

    def steps(self, first: int, last: int) -> list[int]:
        """The steps among these that are recorded."""
        recorded = []
        for step in range(first, last):
            self.time += self.program
            if step in self.plan.steps and self.bounds.wants(step):
                recorded.append(step)
                if self.elements and self.bounds.has_room(step, self.elements):
                    self.written += self.elements
                self.written += self.statistics
                self.time += self.capture
                self.clock.spent += self.capture
                self.bounds.step_filed(step)
        return recorded

    @property
    def now(self) -> list[tuple[int, str]]:
        return [(each.step, each.now) for each in self.bounds.degraded]


def test_elements_are_left_out_then_steps_then_all() -> None:
    run = Run(elements=90, statistics=10, saved_data="full", max_disk=1000)
    recorded = run.steps(0, 60)
    cadences = [(18, "every 2"), (27, "every 4"), (37, "every 8"), (41, "every 16")]
    assert run.now == [(8, "statistics"), *cadences, (49, "off")]
    assert recorded == [*range(18), 18, 20, 22, 24, 26, 28, 32, 36, 40, 48]
    assert run.written == 1000
    assert not run.bounds.wants(1000)


def test_a_step_may_need_more_than_those_before_it() -> None:
    run = Run(statistics=1, saved_data="statistic", max_disk=1000)
    run.bounds.begin(lambda: run.written, 0, reserve=150)
    recorded = run.steps(0, 1000)
    assert recorded == [*range(850)]
    assert run.now == [(850, "off")]


def test_without_bounds_nothing_is_left_out() -> None:
    run = Run(elements=10**12, statistics=10**12, saved_data="full")
    assert run.steps(0, 50) == [*range(50)]
    assert run.now == []


def test_a_decision_about_a_step_does_not_change() -> None:
    run = Run(statistics=1, saved_data="statistic", max_disk=1000)
    assert run.bounds.wants(3)  # another thread has already begun it
    for written in range(50, 950, 50):
        run.written = written
        run.bounds.step_filed(0)
    assert run.bounds.wants(3)
    assert not run.bounds.wants(5)


def test_a_cadence_of_the_plan_is_made_wider() -> None:
    run = Run(statistics=10, saved_data="statistic", max_disk=100, steps=StepSet(None, 5))
    assert run.steps(0, 200) == [0, 5, 10, 15, 20, 25, 30, 35, 40, 50]
    assert run.now[-1] == (51, "off")


def test_a_disk_with_less_than_is_to_stay_free_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    disk_of(monkeypatch, [4_000])
    run = Run(statistics=1, saved_data="statistic", min_free_disk=5_000)
    assert run.steps(0, 5) == []
    assert run.now == [(0, "off")]
    assert "4.00 kB are free, and 5.00 kB must stay free" in run.bounds.degraded[0].why


def test_what_others_write_on_the_disk_counts_for_what_is_to_stay_free(monkeypatch: pytest.MonkeyPatch) -> None:
    free = disk_of(monkeypatch, [105_000])
    run = Run(elements=1, statistics=1, saved_data="full", min_free_disk=5_000)
    assert run.steps(0, 3) == [0, 1, 2]
    free[0] = 20_000
    run.steps(3, 4)
    free[0] = 14_000
    run.steps(4, 5)
    free[0] = 5_000
    run.steps(5, 8)
    assert run.now == [(4, "statistics"), (5, "every 2"), (7, "off")]
    assert {each.bound for each in run.bounds.degraded} == {"min_free_disk"}


def disk_of(monkeypatch: pytest.MonkeyPatch, free: list[int]) -> list[int]:
    """A disk with this many free bytes, which the test may change."""

    def statvfs(_: object) -> os.statvfs_result:
        return os.statvfs_result((1, 1, 10**9, free[0], free[0], 0, 0, 0, 0, 255))

    monkeypatch.setattr(os, "statvfs", statvfs)
    return free


def test_a_tensor_that_memory_has_no_room_for_is_not_kept() -> None:
    run = Run(saved_data="full", max_memory=1000)
    assert run.bounds.has_room(0, 500)
    assert not run.bounds.has_room(1, 501)
    assert not run.bounds.has_room(1, 1)
    assert run.now == [(1, "statistics")]


def test_steps_are_recorded_as_often_as_their_cost_allows() -> None:
    run = Run(program=10 * MS, capture=10 * MS, saved_data="statistic", max_overhead=0.1)
    recorded = run.steps(0, 100)
    assert run.now == [(4, "every 16")]
    assert recorded == [0, 1, 2, 3, 16, 32, 48, 64, 80, 96]
    assert "capture takes 100 % of the program's time, and the limit is 10 %" in run.bounds.degraded[0].why


def test_elements_go_before_steps_do_where_time_is_short() -> None:
    run = Run(elements=1, program=10 * MS, capture=10 * MS, saved_data="full", max_overhead=0.25)
    run.steps(0, 4)
    assert run.now == [(4, "statistics")]
    run.capture = 4 * MS
    run.steps(4, 20)
    assert run.now == [(4, "statistics"), (7, "every 2")]


def test_steps_are_recorded_again_where_that_has_become_cheap() -> None:
    run = Run(program=10 * MS, capture=10 * MS, saved_data="statistic", max_overhead=0.5)
    run.steps(0, 10)
    assert run.now == [(4, "every 2")]
    run.capture = 3 * MS
    run.steps(10, 20)
    assert run.now[1:] == [(13, "every 1")]
    run.capture = 6 * MS
    before = len(run.now)
    run.steps(20, 24)
    assert len(run.now) == before + 1
    run.capture = 4 * MS  # 40 %: within the limit, and more than 70 % of it
    run.steps(24, 60)
    assert len(run.now) == before + 1


def test_one_slow_step_changes_nothing() -> None:
    run = Run(program=10 * MS, capture=MS // 2, saved_data="statistic", max_overhead=0.1)
    run.steps(0, 10)
    run.capture = 1000 * MS
    run.steps(10, 11)
    run.capture = MS // 2
    run.steps(11, 30)
    assert run.now == []


def test_where_no_cadence_is_cheap_enough_nothing_is_recorded() -> None:
    run = Run(program=1000, capture=10 * MS, saved_data="statistic", max_overhead=0.1)
    run.steps(0, 10)
    assert run.now == [(4, "off")]


def test_calls_that_overlap_count_once() -> None:
    clock = CaptureClock(lambda: 0)
    outer, inner = clock.spent, clock.spent
    clock.spent = inner + 3
    clock.spent = outer + 10
    assert clock.spent == 10
    assert clock.seconds is None
    clock.is_measured = True
    assert clock.seconds == 1e-8


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("20GB", 20 * 10**9),
        ("20 gb", 20 * 10**9),
        ("1.5TB", 1_500_000_000_000),
        ("512MiB", 2**29),
        ("4G", 4 * 10**9),
        ("4Gi", 2**32),
        ("3", 3),
        ("7B", 7),
        ("1kB", 1000),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "0GB", "1e3", "20PB", "20%", "0.1B", "5iB", "1_000", "٣GB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match='expected a size above 0 such as "20GB"'):
        parse_size(text)


def test_shares() -> None:
    assert parse_share("10%") == 0.1
    assert parse_share("250 %") == 2.5
    for text in ("10", "0%", "-5%", "%", "0.1", "nan%"):
        with pytest.raises(ConfigError, match='expected a share above 0 such as "10%"'):
            parse_share(text)


def test_a_degradation_in_words_and_as_json() -> None:
    off = Degradation(step=9, time=5, bound="max_disk", now="off", why="1 B of 1 B are used")
    assert str(off) == "from step 9 on nothing is recorded: 1 B of 1 B are used (max_disk)"
    assert Degradation.of_json(off.as_json()) == off
    cadences = [Degradation(step=n, time=5, bound="max_disk", now=f"every {n}", why="x") for n in (2, 4)]
    assert told([*cadences, off]) == f"{cadences[1]}; {off}"
    assert told([]) == ""
    assert [left_out_at(step, [*cadences, off]) for step in (1, 3, 4, 6, 8, 9)] == [
        None,
        cadences[0],
        None,
        cadences[1],
        None,
        off,
    ]


def fired(losses: list[float]) -> list[int]:
    steps: list[int] = []
    rule = LossSpikes(lambda text: steps.append(int(text.split()[3].rstrip(":"))))
    for step, loss in enumerate(losses):
        rule.note(loss)
        rule.end_step(step)
    return steps


def falling(count: int = 200) -> list[float]:
    chance = random.Random(0)
    return [3 * math.exp(-step / 60) + 0.2 + chance.gauss(0, 0.05) for step in range(count)]


def test_a_loss_that_falls_with_noise_is_none() -> None:
    assert fired(falling()) == []


@pytest.mark.parametrize("step", [8, 20, 199])
def test_a_loss_that_jumps_up_is_a_spike(step: int) -> None:
    losses = falling()
    losses[step] *= 10
    assert fired(losses) == [step]


def test_of_losses_that_stay_up_the_first_fires() -> None:
    losses = falling()
    losses[100:110] = [50.0] * 10
    assert fired(losses) == [100]


def test_too_little_is_known_at_first() -> None:
    assert fired([1.0] * 7 + [100.0]) == []
    assert fired([1.0] * 8 + [100.0]) == [8]


@pytest.mark.parametrize("losses", [[0.0] * 50, [2.5] * 50, [-3.0] * 50, [step / 10 for step in range(100)]])
def test_what_is_constant_or_rises_slowly_is_none(losses: list[float]) -> None:
    assert fired(losses) == []


def test_a_negative_loss_may_leap_too() -> None:
    assert fired([-3.0] * 20 + [4.0]) == [20]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_has_its_own_trigger(value: float) -> None:
    assert fired([1.0] * 20 + [value] + [1.0] * 20) == []


def test_losses_of_a_step_count_together() -> None:
    found: list[str] = []
    rule = LossSpikes(found.append)
    for step in range(20):
        for part in (1.0, 3.0 if step < 19 else 97.0):
            rule.note(part)
        rule.end_step(step)
    assert found == ["loss-spike in step 19: 49, the median before is 2"]


def test_only_the_loss_that_a_program_passes_counts() -> None:
    found: list[str] = []
    rule = LossSpikes(found.append)
    for step in range(20):
        rule.note(1000.0 if step == 15 else 1.0)
        rule.tell(step, 1.0 if step < 19 else 9.0)
        rule.end_step(step)
    assert found == ["loss-spike in step 19: 9, the median before is 1"]


def test_a_step_without_a_loss_says_nothing() -> None:
    rule = LossSpikes(pytest.fail)
    rule.end_step(0)
    assert not rule.seen
