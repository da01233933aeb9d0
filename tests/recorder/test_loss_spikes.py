"""When a loss jumps up, and when it only fluctuates, falls or rises slowly."""

from __future__ import annotations

import math
import random

import pytest

from opdump.recorder.live_checks import LossSpikes


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


def test_what_a_program_tells_counts_alone() -> None:
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
