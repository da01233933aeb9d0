"""Separates the runs of several captures in one directory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise


def run_starts(stamps: Iterable[tuple[int, int]], history: Mapping[int, int]) -> tuple[int, ...]:
    """The first time stamps of the runs that left files with these (timestamp, step).

    Steps grow within a run, so a smaller step after a larger one begins a new run. `history` is the number of executions of each
    step (the highest count in the graphs' execution histories, to which MindSpore appends): if a step was executed more often
    than runs were found so far, its files are split at their longest pauses. Empty if there are no files.
    """
    ordered = sorted(stamps)
    starts: set[int] = set()
    previous = -1
    for time, step in ordered:
        if not starts or step < previous:
            starts.add(time)
        previous = step
    for step, executed in sorted(history.items()):
        times = [time for time, its_step in ordered if its_step == step]
        known = sorted(starts)
        seen = len({run_of(time, known) for time in times})
        missing = executed - seen
        if missing > 0 and len(times) > 1:
            pauses = sorted(
                ((later - earlier, later) for earlier, later in pairwise(times) if later not in starts),
                reverse=True,
            )
            starts.update(later for pause, later in pauses[:missing] if pause > 0)
    return tuple(sorted(starts))


def run_of(time: int, starts: Sequence[int]) -> int:
    """Index of the run of a time stamp: the last run that began before it, otherwise the first."""
    index = 0
    for position, start in enumerate(starts):
        if start <= time:
            index = position
    return index


def most_executions(histories: Iterable[Sequence[int]]) -> dict[int, int]:
    """The number of executions of each step: the highest count in the histories of the graphs."""
    most: dict[int, int] = {}
    for history in histories:
        for step, count in Counter(history).items():
            most[step] = max(most.get(step, 0), count)
    return most
