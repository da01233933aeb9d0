"""Keeps the last steps of a run in memory until a trigger fires, like a flight recorder.

ring = Ring(3, ("nan", "exception"))
dropped = ring.keep(ended)       # add a step that ended; returns the steps that no longer fit
ring.fire("exception: ValueError")
if ring.has_fired: ...ring.release()...
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from opdump.plan import Trigger
from opdump.recorder.step_parts import EndedStep, held_bytes
from opdump.verdict import Verdict


class Ring:
    """Keeps the last `size` steps. Only `fire` may be called from several threads."""

    def __init__(self, size: int, triggers: Sequence[Trigger], capacity: int | None = None) -> None:
        """`capacity`: limit in bytes, except that the last step is always kept; None for no limit."""
        self.fired: list[str] = []
        """The triggers that have fired so far, in words: `nan in step 7`."""
        self.size = size
        self._capacity = capacity
        self._bytes = 0
        self._triggers = triggers
        self._kept: deque[EndedStep] = deque()
        self._waits: list[str] = []
        """The triggers that have fired since the last step was written."""

    @property
    def has_fired(self) -> bool:
        return bool(self._waits)

    def fire(self, why: str) -> None:
        """Request that the kept steps and the running step are written. May be called from a signal handler and from any thread."""
        self._waits.append(why)

    def look(self, before: Verdict, now: Verdict, step: int) -> None:
        """Fire if the step has brought the first NaN or infinity of the run."""
        kind = {"nan": "nan", "infinity": "inf"}.get(now.kind)
        if kind in self._triggers and before.kind != now.kind:
            self.fire(f"{kind} in step {step}")

    def keep(self, ended: EndedStep) -> list[EndedStep]:
        """Add a step, or another part of the last one. Return the steps that were dropped."""
        self._kept.append(ended)
        self._bytes += held_bytes(ended.parts)
        dropped = []
        while self.steps > self.size or (self.is_overfull and self._kept[0].step != ended.step):
            dropped.append(self._kept.popleft())
            self._bytes -= held_bytes(dropped[-1].parts)
        return dropped

    def make_room(self, step: int, size: int) -> list[EndedStep]:
        """Drop the oldest steps to make room for `size` bytes of elements of the running step. Steps that are to be written stay."""
        dropped = []
        while not (self.has_fired or self.has_room(size)) and self._kept and self._kept[0].step != step:
            dropped.append(self._kept.popleft())
            self._bytes -= held_bytes(dropped[-1].parts)
        return dropped

    def has_room(self, size: int) -> bool:
        """Return whether `size` more bytes may be kept. Always true while a trigger waits for its steps to be written."""
        return self.has_fired or self._capacity is None or self._bytes + size <= self._capacity

    @property
    def steps(self) -> int:
        """Number of steps kept."""
        return len({each.step for each in self._kept})

    @property
    def is_overfull(self) -> bool:
        """Whether more memory is used than allowed. After `keep`, this can only be due to the last step."""
        return self._capacity is not None and self._bytes > self._capacity

    def release(self) -> list[EndedStep]:
        """Empty the ring and return its steps, oldest first, to be written."""
        self.fired += self._waits
        self._waits = []
        return self.drop()

    def drop(self) -> list[EndedStep]:
        """Empty the ring and return its steps, none of which was written."""
        kept = [*self._kept]
        self._kept.clear()
        self._bytes = 0
        return kept
