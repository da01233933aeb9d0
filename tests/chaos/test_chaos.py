"""A short version of `make chaos`: a few kills in each layout, and most system faults once."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.faults import FAULTS, meet
from tests.chaos.kills import kill_many, place_of, warm_for
from tests.chaos.layouts import CASES

_KILLS = 2
_LONG = ("slow disk", "eight ranks")
"""The faults that take longer than all others together."""


def test_after_a_kill_finished_steps_are_complete_and_the_next_run_works(tmp_path: Path) -> None:
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
