"""Chooses the learned step (lesson) that the next step is compared with.

The steps of a program are of a few kinds in a fixed order: the two updates of a GAN, training and evaluation. So for each kind, its
successor is remembered. If a step is not the expected one, the other lessons are tried the next time, and finally it is learned. If no
step repeats another, the waits before learning again grow.
"""

from __future__ import annotations

from typing import Final, Literal

from opdump.adapters.torch.lesson import Lesson

Outcome = Literal["learned", "same", "stale", "other", "off"]
"""How a step went: it was learned; it was the expected one; it has too many differences and must be learned again; it was another one;
it was ignored, or learning it was broken off."""
_MOST_LESSONS: Final = 4
_MOST_WAITED: Final = 64
"""The maximum number of steps to wait before learning again, if no step repeats another."""
_PATIENCE: Final = 6
"""After more than this number of "stale" or "other" steps, without a "same" one in between, it waits."""


class Lessons:
    """The learned steps, in order of last use."""

    def __init__(self) -> None:
        self._known: dict[int, Lesson] = {}
        self._after: dict[int, int] = {}
        """The successor of each kind of step."""
        self._tried: dict[int, set[int]] = {}
        """The kinds that turned out not to be the successor."""
        self._numbers = 0
        self._before, self._now = -1, -1
        """The kinds of the previous and the current step; -1 if unknown."""
        self._failures = 0
        self._wait = 0
        self._dropped: list[int] = []

    def ended(self, outcome: Outcome) -> None:
        """The step for which `choose` was called, or the first step, has ended."""
        number, before = self._now, self._before
        if outcome in ("learned", "same"):
            if outcome == "same":
                self._failures = 0
            self._after[before] = number
            self._tried.pop(before, None)
            self._known[number] = self._known.pop(number)  # now the most recently used
            self._before = number
            return
        self._before = -1
        if outcome in ("stale", "off"):
            self._drop(number)
            if outcome == "off":
                return
        else:
            self._tried.setdefault(before, set()).add(number)
            if self._after.get(before) == number:
                del self._after[before]
        self._failures += 1
        if self._failures > _PATIENCE:
            self._wait = min(_MOST_WAITED, 2 ** min(self._failures - _PATIENCE, 16))
            for each in list(self._known):  # start again with no lessons
                self._drop(each)

    def choose(self) -> Lesson | None:
        """The lesson to compare the next step with; an empty one to learn it, None to ignore it."""
        self._now = -1
        if self._wait > 0:
            self._wait -= 1
            return None
        number = self._after.get(self._before, -1)
        tried = self._tried.get(self._before, set())
        if number < 0:
            number = next((each for each in reversed(self._known) if each not in tried), -1)
        if number < 0:
            self._tried.pop(self._before, None)
            if len(self._known) >= _MOST_LESSONS:
                self._drop(next(iter(self._known)))
            number, self._numbers = self._numbers, self._numbers + 1
            self._known[number] = Lesson(number)
        self._now = number
        return self._known[number]

    def dropped(self) -> list[int]:
        """The numbers of the lessons dropped since the last call."""
        found, self._dropped = self._dropped, []
        return found

    def give_up(self) -> None:
        """Stop learning and following for good."""
        self._failures, self._wait = 1000, 10**9

    def _drop(self, number: int) -> None:
        if self._known.pop(number, None) is not None:
            self._dropped.append(number)
        self._after = {before: after for before, after in self._after.items() if number not in (before, after)}
        self._tried.pop(number, None)
        for tried in self._tried.values():
            tried.discard(number)
