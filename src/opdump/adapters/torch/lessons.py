"""Chooses which of the steps that were learned the next one is compared with.

Steps of a program are of a few kinds that follow one another in an order of their own: the two updates of a GAN, training and evaluation. So what
followed the step before is remembered for each kind. Where a step turns out to be another one than was expected, the others are tried the
next time, and at last it is learned. A program of which no step repeats another is left alone for longer and longer.
"""

from __future__ import annotations

from typing import Final, Literal

from opdump.adapters.torch.lesson import Lesson

Outcome = Literal["learned", "same", "stale", "other", "off"]
"""Of a step: it was learned; it was the expected one; it was, or was learned, with so many differences that it is better learned again; it was
another one; nobody looked, or no longer when it ended."""
_MOST_LESSONS: Final = 4
_MOST_WAITED: Final = 64
"""Steps between two that are learned, where none repeats another."""
_PATIENCE: Final = 6
"""So many steps may be other than expected one after the other before it waits."""


class Lessons:
    """The steps that were learned, the last used one last."""

    def __init__(self) -> None:
        self._known: dict[int, Lesson] = {}
        self._after: dict[int, int] = {}
        """What came after each kind of step."""
        self._tried: dict[int, set[int]] = {}
        """What did not."""
        self._numbers = 0
        self._before, self._now = -1, -1
        """The kinds of the step before this one and of this one; -1 of one that nobody knows."""
        self._failures = 0
        self._wait = 0
        self._dropped: list[int] = []

    def ended(self, outcome: Outcome) -> None:
        """The step of which `choose` was asked, or the first one, has ended."""
        number, before = self._now, self._before
        if outcome in ("learned", "same"):
            if outcome == "same":
                self._failures = 0
            self._after[before] = number
            self._tried.pop(before, None)
            self._known[number] = self._known.pop(number)  # the last used one
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
            for each in list(self._known):  # and begins anew
                self._drop(each)

    def choose(self) -> Lesson | None:
        """What the next step is compared with; an empty one where it is to be learned, None where it is to be left alone."""
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
        """The numbers of those that were dropped since the last call."""
        found, self._dropped = self._dropped, []
        return found

    def give_up(self) -> None:
        """Nothing is learned or followed any more."""
        self._failures, self._wait = 1000, 10**9

    def _drop(self, number: int) -> None:
        if self._known.pop(number, None) is not None:
            self._dropped.append(number)
        self._after = {before: after for before, after in self._after.items() if number not in (before, after)}
        self._tried.pop(number, None)
        for tried in self._tried.values():
            tried.discard(number)
