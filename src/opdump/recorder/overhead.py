"""Which steps to record so that capture takes no more than a share of the program's own time (`max_overhead`).

A recorded step may cost much where few are recorded. What the last three recorded steps cost is known, and what the program itself took
for each step since: of the steps the multiples of N are recorded, N the smallest of 1, 2, 4, 8, ... at which the cost of one recorded step is
within the share of the program's time for N steps.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final, NamedTuple

_LOOKED_AT: Final = 3
"""So many recorded steps: of their costs the one in the middle counts, so that a single slow step changes nothing."""
_CHEAP: Final = 0.7
"""More steps are recorded again only where that would take less than this part of the bound: a program at the edge does not go to and fro."""


class _Stretch(NamedTuple):
    """From one recorded step to the next: nanoseconds."""

    steps: int
    capture: int
    program: int


class Overhead:
    """Judges by what it is told at the end of each recorded step."""

    def __init__(self, bound: float, base: int) -> None:
        """`base`: of the steps of the plan the multiples of it are recorded (`every`)."""
        self._bound = bound
        self._base = base
        self._before: tuple[int, int, int] | None = None
        self._stretches: deque[_Stretch] = deque(maxlen=_LOOKED_AT)

    def step_filed(self, step: int, now: int, spent: int) -> None:
        """A step was recorded: the time, and what capture took of it so far, in nanoseconds."""
        if self._before is not None and step > self._before[0]:
            capture = spent - self._before[2]
            self._stretches.append(_Stretch(step - self._before[0], capture, now - self._before[1] - capture))
        self._before = step, now, spent

    def forget(self) -> None:
        """From now on recorded steps cost something else."""
        self._stretches.clear()

    def share(self, every: int) -> float | None:
        """What capture takes where each `every`th wanted step is recorded, over the program; None where too little is known."""
        if len(self._stretches) < _LOOKED_AT:
            return None
        steps = sum(each.steps for each in self._stretches)
        program = max(sum(each.program for each in self._stretches), 1) / steps
        return median(each.capture for each in self._stretches) / (program * self._base * every)

    def every(self, now: int, most: int) -> int:
        """Of the wanted steps each so manyth is to be recorded: a power of 2, above `most` where that is not enough; `now` as it is."""
        share = self.share(now)
        if share is None:
            return now
        every = now
        while every <= most and share * now / every > self._bound:
            every *= 2
        while every > 1 and share * now * 2 / every <= self._bound * _CHEAP:
            every //= 2
        return every
