"""The limits of a dump (`max_overhead`, `max_disk`, `min_free_disk`): what has been used, and what is left out when one is reached.

bounds = Bounds(plan, clock)
if bounds.has_room(step, size): ...write the elements of a tensor...
bounds.step_filed(step)
if bounds.wants(step): ...record it...
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple, Protocol

from opdump import amounts
from opdump.degradation import Bound, Degradation
from opdump.layouts.base import RankWriter
from opdump.plan import DumpPlan
from opdump.recorder.capture_errors import CaptureClock
from opdump.recorder.snapshots import SupportsStatisticsAlone

# Chooses which steps to record so that capture takes no more than a given share of the program's own time (`max_overhead`).
#
# One recorded step may cost much if few steps are recorded. The costs of the last three recorded steps are known, and so is the program's own time
# per step since then. The selected steps that are multiples of N are recorded, where N is the smallest of 1, 2, 4, 8, ... for which the cost of one
# recorded step is within the allowed share of the program's time for N steps.

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


# How much of the allowed disk space a dump has used (`max_disk`, `min_free_disk`).

LEAST_BYTES: Final = 256_000
"""A smaller `max_disk` ends the dump after the first step but does not truncate that step: an index without rows already has 50 kB."""
_LOOK_EACH_BYTES: Final = 64_000_000
"""Bytes that may be written before the free space of the disk is measured again."""


class Used(NamedTuple):
    """The used share of the allowed space, where 1 is all of it, for the limit that is closest."""

    share: float
    bound: Bound
    why: str


class DiskRoom:
    """Compares the bytes written with the limits. `written` returns the bytes of the run in all its processes, including those still waiting for the
    disk.
    """

    def __init__(self, plan: DumpPlan, written: Callable[[], int]) -> None:
        self._path = plan.path
        self._most = plan.max_disk
        self._least_free = plan.min_free_disk
        self.written = written
        self._free = self._free_at_first = 0
        if self._least_free is not None:
            self._free = self._free_at_first = free_bytes(plan.path)
        self._looked = written()
        """Bytes written when the free space was last measured."""

    def look(self) -> None:
        """Measure the free space of the disk."""
        if self._least_free is not None:
            self._free = free_bytes(self._path)
        self._looked = self.written()

    def left(self) -> int:
        """Return how many bytes may still be written before a limit is reached, never counting less than LEAST_BYTES for the whole dump."""
        written = self.written()
        left = []
        if self._most is not None:
            left.append(max(self._most, LEAST_BYTES) - written)
        if self._least_free is not None:
            left.append(self._free - (written - self._looked) - self._least_free)
        return max(min(left), 0)

    def used(self, more: int = 0) -> Used:
        """Return the used share after `more` bytes have been written."""
        written = self.written()
        if self._least_free is not None and written + more - self._looked > _LOOK_EACH_BYTES:
            self.look()
        found = []
        if self._most is not None:
            share = (written + more) / self._most
            text = f"{amounts.size(written)} of {amounts.size(self._most)} are used"
            found.append(Used(share, "max_disk", text))
        if self._least_free is not None:
            free = self._free - (written + more - self._looked)
            room = self._free_at_first - self._least_free
            share = (self._free_at_first - free) / room if room > 0 else 1.0
            text = f"{amounts.size(max(self._free, 0))} are free, and {amounts.size(self._least_free)} must stay free"
            found.append(Used(share, "min_free_disk", text))
        return max(found)


def free_bytes(path: Path) -> int:
    """Return how many bytes an unprivileged user may still write at `path`, which need not exist yet."""
    place = Path(path)
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free


# Decides what to leave out when a dump reaches its limits: elements first, then steps, then everything.
#
# Elements may fill 80 % of the allowed disk space. From 90 % on, every second selected step is recorded, and half as many each time half of the rest
# is used. Recording ends when the larger of the last two steps would not fit, or the smaller one together with the pages that the index may add to it.

_LOG = logging.getLogger("opdump")

_FOR_ELEMENTS: Final = 0.8
_FOR_ALL_STEPS: Final = 0.9
MOST_EVERY: Final = 1024
"""If one of this many selected steps is still too much, nothing is recorded."""


class Refusals(Protocol):
    """What a sink did not write for lack of space."""

    has_refused: bool
    refused_steps: set[int]


class Bounds:
    """The limits of a plan and their consequences. Only `wants` may be called from several threads."""

    def __init__(self, plan: DumpPlan, clock: CaptureClock) -> None:
        self.degraded: list[Degradation] = []
        """What was left out, in chronological order."""
        self.takes_elements = plan.saves_tensors
        self.is_off = False
        self.reader: object = None
        """The reader of elements, as long as elements are recorded."""
        self.writer: RankWriter | None = None
        """The writer that enters a degradation into the index."""
        self._plan = plan
        self._clock = clock
        self._base = plan.steps.every
        self._may_leave_elements = plan.mode.files_selected and plan.mode.reads_operators
        """Whether statistics are useful without elements. They are not for an operator that failed."""
        self._disk: DiskRoom | None = None
        self._sink: Callable[[], Refusals] | None = None
        self._overhead = None if plan.max_overhead is None else Overhead(plan.max_overhead, self._base)
        self._disk_every = self._time_every = 1
        self._changes: list[tuple[int, int]] = [(0, 1)]
        """Pairs (step, N): from that step on, every Nth selected step is recorded."""
        self._off_from = 0
        self._asked = -1
        """The last step for which `wants` was called. Later changes do not affect its answer."""
        self._ring_steps = plan.ring
        self._written = 0
        self._steps: deque[int] = deque(maxlen=2)
        """Bytes of the last two steps, without elements."""
        self._reserve = 0
        self._has_first = False
        self._elements = 0
        """Bytes of elements written since the last step."""

    def room(self) -> int | None:
        """Return how many more bytes of any kind may be written, or None without a limit."""
        return None if self._disk is None else self._disk.left()

    def refused(self, step: int) -> bool:
        """Return whether a step was passed to the writer and not written for lack of room."""
        return self._sink is not None and step in self._sink().refused_steps

    @property
    def every(self) -> int:
        """N, if every Nth selected step is recorded now."""
        return self._changes[-1][1]

    def begin(
        self, written: Callable[[], int], first_step: int, reserve: int = 0, sink: Callable[[], Refusals] | None = None
    ) -> None:
        """Start to apply the limits. `written` returns the bytes of the run; `sink` returns the object that knows what it did not write for lack of
        `room`; `reserve` is how many bytes a step may add beyond those of a similar step. If there is no room at all, nothing is recorded.
        """
        self._sink = sink
        if self._plan.max_disk is None and self._plan.min_free_disk is None:
            return
        self._disk = DiskRoom(self._plan, written)
        self._reserve = reserve
        used, self._written = self._disk.used(), written()
        if used.share >= 1:
            self._off(first_step, used.bound, used.why)

    def wants(self, step: int) -> bool:
        """Return whether the limits allow this step to be recorded. The answer for a step never changes."""
        if self.is_off:
            return step < self._off_from
        self._asked = max(self._asked, step)
        if len(self._changes) == 1:
            return True
        place = bisect_right(self._changes, step, key=lambda change: change[0]) - 1
        return step % (self._base * self._changes[max(place, 0)][1]) == 0

    def has_room(self, step: int, size: int, *, are_kept: bool = False) -> bool:
        """Return whether `size` bytes of elements may be written. After the first refusal, no more elements are recorded. `are_kept`: they were
        recorded before that and kept in memory.
        """
        if not (self.takes_elements or are_kept):
            return False
        memory = self._plan.max_memory
        if memory is not None and size > memory // 2:
            why = f"a tensor of {amounts.size(size)} waits for the disk, and the limit for one tensor is half of {amounts.size(memory)}"
            self._leave_elements(step, "max_memory", why)
            return False
        if self._disk is not None:
            used = self._disk.used(size)
            if used.share > (_FOR_ELEMENTS if self._may_leave_elements else 1):
                if self.takes_elements:
                    self._leave_elements(step, used.bound, used.why)
                return False
            self._elements += size
        return True

    def step_filed(self, step: int, *, is_part: bool = False) -> None:
        """Note that a step was passed to the writer. `is_part`: the step continues, and the rest of it is still recorded if anything is."""
        if self.is_off:
            return
        if self._disk is not None:
            self._judge_disk(step, step if is_part else step + 1, self._disk)
        if self._overhead is not None and not is_part:
            self._judge_overhead(step, self._overhead)

    def ring_shrank(self, step: int, steps: int) -> None:
        """Note that a ring keeps fewer steps than requested because more do not fit into memory. 0: not even one step fits."""
        if self.is_off or steps >= self._ring_steps:
            return
        self._ring_steps = steps
        room = f"half of {amounts.size(self._plan.max_memory or 0)}"
        if steps:
            self._degrade(step, "max_memory", f"ring {steps}", f"more do not fit into {room}")
        else:
            self._off(step, "max_memory", f"a step of the ring does not fit into {room}")

    def ring_has_no_room(self, step: int) -> None:
        """Note that the elements of a single step do not fit into the memory of a ring."""
        if self.takes_elements and not self.is_off:
            room = f"half of {amounts.size(self._plan.max_memory or 0)}"
            self._leave_elements(step, "max_memory", f"the elements of a step of the ring do not fit into {room}")

    def _judge_disk(self, step: int, following: int, disk: DiskRoom) -> None:
        disk.look()
        if self._sink is not None and (self._sink().has_refused or self._sink().refused_steps):
            used = disk.used()
            if self.refused(step):
                self._off(step, used.bound, f"{used.why}, and step {step} needs more")
            else:
                self._off(
                    following,
                    used.bound,
                    f"{used.why}, and the graphs and tables of step {step} need more and are left out",
                )
            return
        used, written = disk.used(), disk.written()
        if self._has_first:  # the first step includes the graphs and the fixed part of the index
            self._steps.append(max(written - self._written - self._elements, 0))
        self._written, self._elements, self._has_first = written, 0, True
        if used.share >= _FOR_ELEMENTS and self.takes_elements and self._may_leave_elements:
            self._leave_elements(following, used.bound, used.why)
        more = max(*self._steps, min(self._steps) + self._reserve) if self._steps else self._reserve
        full = disk.used(more)
        if used.share >= 1:
            self._off(following, used.bound, used.why)
        elif full.share > 1:
            self._off(following, full.bound, f"{full.why}, and the next step may need {amounts.size(more)}")
        elif used.share >= _FOR_ALL_STEPS:
            halvings = math.floor(math.log2((1 - _FOR_ALL_STEPS) / (1 - used.share)) + 1e-9)
            self._disk_every = max(self._disk_every, min(2 ** (halvings + 1), MOST_EVERY))
            self._set_every(step, used.bound, used.why)

    def _judge_overhead(self, step: int, overhead: Overhead) -> None:
        overhead.step_filed(step, self._clock.now(), self._clock.spent)
        share = overhead.share(self._time_every)
        if share is None or self._plan.max_overhead is None or self.is_off:
            return
        every = overhead.every(self._time_every, MOST_EVERY)
        limit = f"the limit is {100 * self._plan.max_overhead:.3g} %"
        why = f"capture takes {100 * share:.3g} % of the program's time, and {limit}"
        if every > self._time_every and self.takes_elements and self._may_leave_elements:
            self._leave_elements(step + 1, "max_overhead", why)
        elif every > MOST_EVERY:
            self._off(step + 1, "max_overhead", why)
        else:
            self._time_every = every
            self._set_every(step, "max_overhead", why)

    def _set_every(self, step: int, bound: Bound, why: str) -> None:
        every = max(self._disk_every, self._time_every)
        if every == self.every:
            return
        first = max(self._asked, step) + 1
        self._changes = [*(each for each in self._changes if each[0] < first), (first, every)]
        self._degrade(first, bound, f"every {self._base * every}", why)

    def _leave_elements(self, step: int, bound: Bound, why: str) -> None:
        self.takes_elements = False
        if isinstance(self.reader, SupportsStatisticsAlone):
            self.reader.leave_elements()
        if self._overhead is not None:
            self._overhead.forget()
        if self._may_leave_elements:
            self._degrade(step, bound, "statistics", why)
        else:
            self._off(step, bound, why)

    def _off(self, step: int, bound: Bound, why: str) -> None:
        self.is_off = True
        self._off_from = step
        self._degrade(step, bound, "off", why)

    def _degrade(self, step: int, bound: Bound, now: str, why: str) -> None:
        degradation = Degradation(step=step, time=time.time_ns() // 1000, bound=bound, now=now, why=why)
        self.degraded.append(degradation)
        _LOG.warning("opdump: %s", degradation)
        if self.writer is not None:
            self.writer.write_degradation(degradation)
