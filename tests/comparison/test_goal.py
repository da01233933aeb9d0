"""The end state of one program, searched for in the end state of another: in any place, within rounding."""

from __future__ import annotations

import numpy as np
import pytest

from opdump.comparison.end_state import End, ExpectedEndState

RANDOM = np.random.default_rng(0)
WEIGHT = RANDOM.normal(size=(6, 4))
BIAS = RANDOM.normal(size=6)
LOSS = End(np.array([0.7, 0.9]), scale=1.0)


def _goal(*, is_coarse: bool = False) -> ExpectedEndState:
    return ExpectedEndState([End(WEIGHT, 1.0), End(BIAS, 1.0)], [LOSS], is_coarse=is_coarse)


def test_what_is_left_in_other_places_is_not_missed() -> None:
    joined = np.concatenate([WEIGHT.T.reshape(-1), BIAS])
    assert list(_goal().missed_by({7: End(joined, 1.0)}, [LOSS])) == []


def test_what_is_left_nowhere_is_named_by_its_storage_and_a_loss_by_its_place() -> None:
    left = {3: End(WEIGHT * 1.01, 1.0), 4: End(BIAS, 1.0)}
    other_loss = End(np.array([0.7, 0.8]), 1.0)
    assert list(_goal().missed_by(left, [LOSS, other_loss])) == [3, ("other", 1)]


def test_what_lasts_is_not_found_among_the_losses() -> None:
    assert list(_goal().missed_by({3: LOSS}, [End(BIAS, 1.0)])) == [3, ("other", 0)]


def test_a_single_number_and_whole_numbers_count_steps_and_are_left_alone() -> None:
    counters = {1: End(np.array([17.0]), 1.0), 2: End(np.array([5, 6, 7]), 1.0)}
    assert list(_goal().missed_by(counters, [])) == []


@pytest.mark.parametrize(
    ("share", "is_missed_coarsely", "is_missed"), [(1e-2, True, True), (1e-4, False, True), (1e-8, False, False)]
)
def test_a_coarse_goal_takes_what_is_off_by_less_than_a_thousandth_of_what_the_step_did(
    share: float, is_missed_coarsely: bool, is_missed: bool
) -> None:
    left = {3: End(WEIGHT + share, 1.0)}
    assert bool(list(_goal(is_coarse=True).missed_by(left, []))) is is_missed_coarsely
    assert bool(list(_goal().missed_by(left, []))) is is_missed


def test_a_tensor_may_be_off_by_what_a_step_does_to_it_and_not_by_what_it_holds() -> None:
    goal = ExpectedEndState([End(WEIGHT, 1e-3)], [], is_coarse=False)
    assert list(goal.missed_by({3: End(WEIGHT + 1e-6, 1e-3)}, [])) == [3]
    assert list(goal.missed_by({3: End(WEIGHT + 1e-6, 1e3)}, [])) == []


def test_gradients_that_are_zero_by_mathematics_are_not_missed_beside_those_that_are_not() -> None:
    rounding = RANDOM.normal(size=6) * 1e-16
    left = {9: End(rounding, 1e-16)}
    others = [End(WEIGHT, 1.0), End(BIAS, 1.0)]
    zeros = End(np.zeros(6), 0.0)
    assert list(ExpectedEndState([*others, zeros], [], is_coarse=False).missed_by(left, [])) == []
    assert list(ExpectedEndState([zeros], [], is_coarse=False).missed_by(left, [])) == [9], (
        "nothing shows how large a step is"
    )
