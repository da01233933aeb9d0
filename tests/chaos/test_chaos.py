"""A little of `make chaos`: some kills in each layout, and most faults of the system once."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.faults import FAULTS, meet
from tests.chaos.kills import kill_many, place_of, warm_for
from tests.chaos.layouts import CASES

_KILLS = 2
_LONG = ("slow disk", "eight ranks")
"""Those that take longer than all others together."""


def test_a_run_that_is_killed_leaves_finished_steps_whole_and_the_next_run_a_place(tmp_path: Path) -> None:
    with warm_for(CASES, tmp_path) as warm:
        for case in CASES:
            found = kill_many(place_of(warm, case, tmp_path), kills=_KILLS, seed=0)
            assert not found.wrong, "\n".join(found.wrong)
            assert found.counts["kills"] == _KILLS


def test_faults_of_the_system_are_told_and_cost_the_training_nothing(tmp_path: Path) -> None:
    with warm_for(CASES, tmp_path) as warm:
        places = [place_of(warm, case, tmp_path) for case in CASES]
        for number, name in enumerate(name for name in FAULTS if name not in _LONG):
            found = meet(places[number % len(places)], name)
            assert not found.wrong, "\n".join(found.wrong)
