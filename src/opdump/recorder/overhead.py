"""Chooses which steps to record so that capture takes no more than a given share of the program's own time (`max_overhead`).

One recorded step may cost much if few steps are recorded. The costs of the last three recorded steps are known, and so is the program's own time
per step since then. The selected steps that are multiples of N are recorded, where N is the smallest of 1, 2, 4, 8, ... for which the cost of one
recorded step is within the allowed share of the program's time for N steps.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final, NamedTuple

_LOOKED_AT: Final = 3
"""Number of recorded steps considered. Their median cost counts, so that a single slow step changes nothing."""
_CHEAP: Final = 0.7
"""More steps are recorded again only if that takes less than this share of the limit, so that a program near the limit does not alternate."""


class _Stretch(NamedTuple):
    """The time from one recorded step to the next, in nanoseconds."""

    steps: int
    capture: int
    program: int


class Overhead:
    """Decides from the times that it receives at the end of each recorded step."""

    def __init__(self, bound: float, base: int) -> None:
        """`base`: the plan selects multiples of this number (`every`)."""
        self._bound = bound
        self._base = base
        self._before: tuple[int, int, int] | None = None
        self._stretches: deque[_Stretch] = deque(maxlen=_LOOKED_AT)

    def step_filed(self, step: int, now: int, spent: int) -> None:
        """Note that a step was recorded. `now` is the time, `spent` the total capture time so far, both in nanoseconds."""
        if self._before is not None and step > self._before[0]:
            capture = spent - self._before[2]
            self._stretches.append(_Stretch(step - self._before[0], capture, now - self._before[1] - capture))
        self._before = step, now, spent

    def forget(self) -> None:
        """Forget the measured costs, because recorded steps cost something else from now on."""
        self._stretches.clear()

    def share(self, every: int) -> float | None:
        """Return the ratio of capture time to program time if every `every`th selected step is recorded, or None if too few steps were measured."""
        if len(self._stretches) < _LOOKED_AT:
            return None
        steps = sum(each.steps for each in self._stretches)
        program = max(sum(each.program for each in self._stretches), 1) / steps
        return median(each.capture for each in self._stretches) / (program * self._base * every)

    def every(self, now: int, most: int) -> int:
        """Return N so that every Nth selected step is to be recorded: a power of 2, above `most` if that does not suffice, or `now` if nothing is
        known.
        """
        share = self.share(now)
        if share is None:
            return now
        every = now
        while every <= most and share * now / every > self._bound:
            every *= 2
        while every > 1 and share * now * 2 / every <= self._bound * _CHEAP:
            every //= 2
        return every
