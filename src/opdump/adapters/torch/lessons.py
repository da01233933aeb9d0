"""The record of a learned step (lesson), the choice of the one that the next step is compared with, and the elements of followed operators."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Literal

import numpy as np

from opdump.adapters.torch.memory import widened
from opdump.adapters.torch.naming import Site
from opdump.interpreter.critical_sections import not_interrupted
from opdump.kernels import DTYPE_CODES
from opdump.recorder import Recorder, TensorSnapshot
from opdump.records import HostPayload, OpRecord, SkipReason, TensorRecord
from opdump.step_table import StepTemplate, TensorFacts, TensorSlot, ran

# A step: its operators in order, and parts of it as columns.

_MOST_TEMPLATES: Final = 1024
"""The maximum number of templates kept for a step. Beyond it, all are dropped and built again when needed."""
Named = tuple[int, str, str, int, str, object]
"""The arguments of a call of `Sites.next`."""


class Kind(IntEnum):
    """How an operator is recorded; the numbers are those of `EventKind` in native/follower.h."""

    KERNEL = 0  # with its tensors
    LISTED = 1  # without a kernel: named and counted
    QUICK = 2  # without a kernel, in a gradient that ran it before: only counted
    ALLOCATION = 3  # without a kernel: named and counted, and its outputs are noted
    VALUE = 4  # a value that no operator made
    OTHER = 5  # cannot be followed


@dataclass(slots=True, eq=False)
class Event:
    """An operator or a value of a learned step."""

    kind: Kind
    order: int
    site: Site | None
    named: Named | None = None
    link: Any = None
    op: OpRecord | None = None
    tensors: Sequence[TensorSnapshot] = ()
    """Snapshots of the inputs and outputs; their statistics are not used."""
    inputs: int = 0
    number: int = 0
    """The number of earlier events that are operators of templates."""
    first_tensor: int = 0
    """The index of its first tensor in `Lesson.tensors`."""


@dataclass(slots=True, eq=False)
class Lesson:
    """A learned step."""

    number: int
    events: list[Event] = field(default_factory=list)
    templates: dict[tuple[int, int], StepTemplate] = field(default_factory=dict)
    tensors: list[tuple[Event, TensorSnapshot]] = field(default_factory=list)
    """The tensors of operators of templates."""

    def learned(self, event: Event) -> None:
        """Append the next event."""
        if self.events:
            last = self.events[-1]
            event.number = last.number + (last.op is not None and last.kind is not Kind.OTHER)
        event.first_tensor = len(self.tensors)
        self.events.append(event)
        if event.op is not None and event.kind is not Kind.OTHER:
            self.tensors += [(event, known) for known in event.tensors]

    def template(self, first: int, last: int) -> StepTemplate:
        """The operators and tensors of these events; the same object each time."""
        known = self.templates.get((first, last))
        if known is None:
            ops: list[OpRecord] = []
            slots: list[TensorSlot] = []
            facts: list[TensorFacts] = []
            for event in self.events[first:last]:
                if event.op is None or event.kind is Kind.OTHER:
                    continue
                for each in event.tensors:
                    slots.append((len(ops), each.io, each.slot, each.argument, each.source, len(facts)))
                    facts.append(TensorFacts(each.dtype, each.shape, each.data_size, each.skip, each.memory))
                ops.append(event.op)
            if len(self.templates) >= _MOST_TEMPLATES:
                self.templates.clear()
            known = self.templates[first, last] = StepTemplate(ops, slots, facts)
        return known


def are_alike(facts: Sequence[tuple[Any, ...]], taken: Sequence[TensorSnapshot], table: Any) -> bool:
    """Whether the follower saw the same tensors as the reader, whose summaries are in `table`."""
    if len(facts) != len(taken):
        return False
    for seen, entry in zip(facts, taken, strict=True):
        memory = entry.memory
        if memory is None or (entry.row >= 0) != (not entry.skip) or entry.table not in (None, table):
            return False
        skip: SkipReason = "empty" if seen[8] else "allocation" if seen[9] else ""
        expected = (entry.slot, DTYPE_CODES.get(entry.dtype), entry.shape, memory.storage, memory.offset,
                    memory.strides, memory.version, entry.source)  # fmt: skip
        if seen[:8] != expected or skip != entry.skip:
            return False
    return True


# Chooses the learned step (lesson) that the next step is compared with.
#
# The steps of a program are of a few kinds in a fixed order: the two updates of a GAN, training and evaluation. So for each kind, its
# successor is remembered. If a step is not the expected one, the other lessons are tried the next time, and finally it is learned. If no
# step repeats another, the waits before learning again grow.

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


# Writes the elements of followed operators. Compiled code copies them (small tensors together); `FollowedElements` builds their records.
# A run of followed operators reaches the recorder only on request (`Following.gather`); elements are written earlier.


class FollowedElements:
    """Writes the elements of the current run."""

    def __init__(self, recorder: Recorder, follower: Any) -> None:
        self._recorder = recorder
        self._follower = follower
        self._lesson = Lesson(-1)

    @not_interrupted
    def file(self, lesson: Lesson) -> None:
        """Write the elements of this lesson's tensors that the follower has and that are not written yet."""
        self._lesson = lesson
        self._follower.file_kept(self._filed)

    def _filed(self, place: int, address: int, first_event: int, step: int) -> str | None:
        first = self._lesson.events[first_event]
        event, known = self._lesson.tensors[first.first_tensor + place]
        assert event.op is not None
        op = ran(event.op, self._follower.timestamp(event.number - first.number), step, event.op.arguments)
        is_wide = known.dtype == "bfloat16"
        memory = (ctypes.c_char * known.data_size).from_address(address)
        array: Any = np.ndarray(known.shape, np.uint16 if is_wide else known.dtype, memoryview(memory))
        if is_wide:
            array = widened(array)
        record = TensorRecord(
            op=op,
            io=known.io,
            slot=known.slot,
            dtype=known.dtype,
            shape=known.shape,
            payload=HostPayload(array),
            argument=known.argument,
            source=known.source,
            data_size=known.data_size,
            memory=known.memory,
        )
        return self._recorder.file_elements(record, array.nbytes)
