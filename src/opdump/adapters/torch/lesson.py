"""The record of a learned step: its operators in order, and parts of it as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

from opdump.adapters.torch.sites import Site
from opdump.kernels import DTYPE_CODES
from opdump.recorder import TensorSnapshot
from opdump.records import OpRecord, SkipReason
from opdump.step_columns import BlockPattern, BlockTensor, OperatorSequence, TensorFacts

_MOST_PATTERNS: Final = 1024
"""The maximum number of patterns kept for a step. Beyond it, all are dropped and built again when needed."""
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
    """The number of earlier events that are operators of patterns."""
    first_tensor: int = 0
    """The index of its first tensor in `Lesson.tensors`."""


@dataclass(slots=True, eq=False)
class Lesson:
    """A learned step."""

    number: int
    events: list[Event] = field(default_factory=list)
    patterns: dict[tuple[int, int], BlockPattern] = field(default_factory=dict)
    tensors: list[tuple[Event, TensorSnapshot]] = field(default_factory=list)
    """The tensors of operators of patterns."""

    def learned(self, event: Event) -> None:
        """Append the next event."""
        if self.events:
            last = self.events[-1]
            event.number = last.number + (last.op is not None and last.kind is not Kind.OTHER)
        event.first_tensor = len(self.tensors)
        self.events.append(event)
        if event.op is not None and event.kind is not Kind.OTHER:
            self.tensors += [(event, known) for known in event.tensors]

    def pattern(self, first: int, last: int) -> BlockPattern:
        """The operators and tensors of these events; the same object each time."""
        known = self.patterns.get((first, last))
        if known is None:
            ops: list[OpRecord] = []
            slots: list[BlockTensor] = []
            facts: list[TensorFacts] = []
            for event in self.events[first:last]:
                if event.op is None or event.kind is Kind.OTHER:
                    continue
                for each in event.tensors:
                    slots.append((len(ops), each.io, each.slot, each.argument, each.source, len(facts)))
                    facts.append(TensorFacts(each.dtype, each.shape, each.data_size, each.skip, each.memory))
                ops.append(event.op)
            if len(self.patterns) >= _MOST_PATTERNS:
                self.patterns.clear()
            known = self.patterns[first, last] = OperatorSequence(ops, slots).pattern(facts)
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
