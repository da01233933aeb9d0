"""A short version of `make chaos`: a few kills in each layout, and most system faults once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.faults import FAULTS, meet
from tests.chaos.kills import Place, kill_many, place_of, warm_for
from tests.chaos.layouts import CASES

_KILLS = 2
_LONG = ("slow disk", "eight ranks")
"""The faults that take longer than all others together."""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Place]]:
    """One place for each layout."""
    folder = tmp_path_factory.mktemp("chaos")
    with warm_for(CASES, folder) as warm:
        yield [place_of(warm, case, folder) for case in CASES]


def test_after_a_kill_finished_steps_are_complete_and_the_next_run_works(places: list[Place]) -> None:
    for place in places:
        found = kill_many(place, kills=_KILLS, seed=0)
        assert not found.wrong, "\n".join(found.wrong)
        assert found.counts["kills"] == _KILLS


def test_faults_of_the_system_are_reported_and_cost_the_training_nothing(places: list[Place]) -> None:
    for number, name in enumerate(name for name in FAULTS if name not in _LONG):
        found = meet(places[number % len(places)], name)
        assert not found.wrong, "\n".join(found.wrong)
