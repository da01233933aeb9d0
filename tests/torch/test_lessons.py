"""With which of the learned steps the next step is compared."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from opdump.adapters.torch.lessons import Event, Kind, Lessons, Outcome


def followed(kinds: Iterable[str]) -> tuple[list[Outcome], Lessons]:
    """The outcomes of steps of these kinds: a step equals a lesson that was learned from a step of the same kind."""
    lessons = Lessons()
    known: dict[int, str] = {}
    outcomes: list[Outcome] = []
    outcome: Outcome = "off"
    for kind in kinds:
        lesson = lessons.choose()
        for number in lessons.dropped():
            del known[number]
        if lesson is None:
            outcome = "off"
        elif not lesson.events:
            lesson.events.append(Event(Kind.QUICK, 0, None))
            known[lesson.number] = kind
            outcome = "learned"
        else:
            outcome = "same" if known[lesson.number] == kind else "other"
        lessons.ended(outcome)
        outcomes.append(outcome)
    return outcomes, lessons


def test_a_step_that_repeats_is_learned_once() -> None:
    outcomes, _ = followed("aaaaa")
    assert outcomes == ["learned", "same", "same", "same", "same"]


@pytest.mark.parametrize("pattern", ["ab", "aab", "abc", "aaaaaaaaab", "aabb"])
def test_kinds_that_take_turns_are_all_followed_in_the_end(pattern: str) -> None:
    outcomes, _ = followed(pattern * 30)
    late = outcomes[-10 * len(pattern) :]
    # The next lesson is predicted from the previous step only: if steps of two kinds follow the same one, one of the kinds is mispredicted.
    most = {"ab": 1.0, "abc": 1.0, "aab": 0.3, "aaaaaaaaab": 0.7, "aabb": 0.25}[pattern]
    assert late.count("same") >= most * len(late), late


def test_a_program_that_never_repeats_is_left_alone_for_longer_and_longer() -> None:
    outcomes, _ = followed([str(number) for number in range(1000)])
    assert outcomes.count("off") > 900
    assert outcomes.count("same") == 0


def test_a_program_that_begins_to_repeat_is_found_again() -> None:
    outcomes, _ = followed([*[str(number) for number in range(100)], *["x"] * 300])
    assert outcomes[-100:] == ["same"] * 100


@pytest.mark.parametrize("outcome", ["stale", "off"])
def test_an_incomplete_lesson_is_dropped(outcome: Outcome) -> None:
    lessons = Lessons()
    first = lessons.choose()
    assert first is not None
    lessons.ended(outcome)
    second = lessons.choose()
    assert second is not None
    assert second is not first
    assert lessons.dropped() == [first.number]
    assert lessons.dropped() == []


def test_no_lesson_is_chosen_after_giving_up() -> None:
    lessons = Lessons()
    lessons.give_up()
    assert all(lessons.choose() is None for _ in range(100))
