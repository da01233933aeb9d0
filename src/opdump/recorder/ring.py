"""The last steps of a run, in memory, until a trigger fires: a flight recorder.

ring = Ring(3, ("nan", "exception"))
dropped = ring.keep(ended)       # a step that ended, and what falls out for it
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
    """Keeps the last `size` steps. Not for several threads, but for `fire`."""

    def __init__(self, size: int, triggers: Sequence[Trigger], capacity: int | None = None) -> None:
        """`capacity`: so many bytes are kept at most, but for the last step; None for no bound."""
        self.fired: list[str] = []
        """What fired so far, in words: `nan in step 7`."""
        self.size = size
        self._capacity = capacity
        self._bytes = 0
        self._triggers = triggers
        self._kept: deque[EndedStep] = deque()
        self._waits: list[str] = []
        """What fired since the last step that was filed."""

    @property
    def has_fired(self) -> bool:
        return bool(self._waits)

    def fire(self, why: str) -> None:
        """What is kept is to be filed, with the step that runs. A signal's handler may call it, and any thread."""
        self._waits.append(why)

    def look(self, before: Verdict, now: Verdict, step: int) -> None:
        """Fires where the step has brought the first NaN or infinity of the run."""
        kind = {"nan": "nan", "infinity": "inf"}.get(now.kind)
        if kind in self._triggers and before.kind != now.kind:
            self.fire(f"{kind} in step {step}")

    def keep(self, ended: EndedStep) -> list[EndedStep]:
        """Adds a step, or another part of the last one; what falls out."""
        self._kept.append(ended)
        self._bytes += held_bytes(ended.parts)
        dropped = []
        while self.steps > self.size or (self.is_overfull and self._kept[0].step != ended.step):
            dropped.append(self._kept.popleft())
            self._bytes -= held_bytes(dropped[-1].parts)
        return dropped

    def make_room(self, step: int, size: int) -> list[EndedStep]:
        """Lets the oldest steps go for elements of so many bytes that the running step holds; nothing of what is to be filed."""
        dropped = []
        while not (self.has_fired or self.has_room(size)) and self._kept and self._kept[0].step != step:
            dropped.append(self._kept.popleft())
            self._bytes -= held_bytes(dropped[-1].parts)
        return dropped

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more may be kept; always until what has fired is filed."""
        return self.has_fired or self._capacity is None or self._bytes + size <= self._capacity

    @property
    def steps(self) -> int:
        """How many steps are kept."""
        return len({each.step for each in self._kept})

    @property
    def is_overfull(self) -> bool:
        """Whether it takes more memory than it may: after `keep` the last step alone does."""
        return self._capacity is not None and self._bytes > self._capacity

    def release(self) -> list[EndedStep]:
        """All that is kept, oldest first, to be filed; the ring is empty then."""
        self.fired += self._waits
        self._waits = []
        return self.drop()

    def drop(self) -> list[EndedStep]:
        """All that is kept; nothing of it was filed."""
        kept = [*self._kept]
        self._kept.clear()
        self._bytes = 0
        return kept
