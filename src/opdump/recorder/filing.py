"""Processes a step that has ended: checks it, and writes it at once or, if the plan keeps the last steps in memory, when a trigger fires."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from opdump.plan import DumpPlan
from opdump.recorder.bounds import Bounds
from opdump.recorder.live_checks import LiveChecks
from opdump.recorder.ring import Ring
from opdump.recorder.ring_elements import RingElements
from opdump.recorder.snapshots import TensorSnapshot
from opdump.recorder.step_parts import EndedStep, all_ops, count_tensors, merged
from opdump.recorder.tally import Tally
from opdump.recorder.tensor_files import TensorFiles
from opdump.recorder.verdict import Lookout
from opdump.recorder.writers import StepWriter
from opdump.records import OpRecord
from opdump.step_columns import BlockRun
from opdump.verdict import Verdict


class StepFiling:
    """Passes steps to the writer and counts what became of them.

    `filed` receives the single records of each step that was written. `is_over` returns whether writing has become impossible.
    """

    def __init__(
        self,
        plan: DumpPlan,
        writer: StepWriter,
        tally: Tally,
        checks: LiveChecks | None,
        bounds: Bounds,
        filed: Callable[[set[int], Sequence[OpRecord], Sequence[TensorSnapshot]], object],
        is_over: Callable[[], bool],
    ) -> None:
        self._writer = writer
        self._tally = tally
        self._checks = checks
        self._bounds = bounds
        self._filed = filed
        self._is_over = is_over
        self._lookout = Lookout(plan.mode)
        self._ring = Ring(plan.ring, plan.triggers, plan.held_bytes) if plan.ring else None
        copies = plan.layout_facts.copies_elements
        self.files: Final = (
            RingElements(writer, bounds, self._make_room, copies=copies)
            if plan.ring and plan.saves_tensors
            else TensorFiles(writer, bounds, copies=copies)
        )
        """Receives the elements of the running step."""

    @property
    def verdict(self) -> Verdict:
        """The first finding in the steps that have ended."""
        return self._lookout.verdict

    @property
    def fired(self) -> Sequence[str]:
        return () if self._ring is None else self._ring.fired

    def fire(self, why: str) -> None:
        """Write the steps kept in memory, and the running step when it ends."""
        if self._ring is not None:
            self._ring.fire(why)

    def write(self, ended: EndedStep) -> None:
        """Check a step, and pass it to the writer unless it is to be kept in memory."""
        before = None if self._ring is None else self.verdict
        for number, ran, kept, _ in ended.records:
            self._lookout.end_step(number, ran, kept)
            if self._checks is not None:
                self._checks.end_step(number, ran, kept)
        if self._ring is None:
            self._write(ended)
        elif before is not None:
            self._ring.look(before, self.verdict, ended.step)

    def count(self, ended: EndedStep) -> None:
        """Count the step that `write` received. If a trigger has fired, write the steps kept in memory."""
        if self._ring is None:
            self._count_filed(ended)
            return
        dropped = self._ring.keep(ended)
        self._count_dropped(dropped)
        if self._ring.is_overfull or (dropped and self._ring.steps < self._ring.size):
            self._bounds.ring_shrank(ended.step, 0 if self._ring.is_overfull else self._ring.steps)
        if self._ring.has_fired:
            self._file(self._ring)

    def end_run(self) -> None:
        """Write the steps kept in memory if a trigger has fired since the last step ended, and count the others as left out."""
        if self._ring is not None:
            if self._ring.has_fired and not self._is_over():
                self._file(self._ring)
            self._count_dropped(self._ring.drop())

    def count_lost(self, steps: Iterable[EndedStep]) -> None:
        """Count steps that should have been written and no longer can be."""
        for ended in steps:
            self._tally.lost(all_ops(ended.parts), count_tensors(ended.parts))
            self._tally.left_out(ended.counted)

    def _make_room(self, step: int, size: int) -> bool:
        """Return whether `size` bytes, all elements of the running step, fit beside the steps in memory. The oldest of these are dropped to make
        room.
        """
        assert self._ring is not None, "without a ring, elements are written at once"
        dropped = self._ring.make_room(step, size)
        self._count_dropped(dropped)
        if dropped and self._ring.steps + 1 < self._ring.size:
            self._bounds.ring_shrank(step, self._ring.steps + 1)
        return self._ring.has_room(size)

    def _file(self, ring: Ring) -> None:
        waiting = ring.release()
        try:
            while waiting:
                self.files.write_kept(merged(waiting[0].parts).tensors)
                self._write(waiting[0].with_files())
                self._count_filed(waiting.pop(0))
        except BaseException:
            self.count_lost(waiting)
            raise

    def _write(self, ended: EndedStep) -> None:
        for number, ran, kept, files in ended.records:
            self._writer.write_step(number, ran, kept, files, ended.counted if number == ended.step else {})

    def _count_filed(self, ended: EndedStep) -> None:
        self._tally.left_out(ended.counted)
        if self._is_over() or self._bounds.refused(ended.step):
            self._tally.lost(all_ops(ended.parts), count_tensors(ended.parts))
            return
        singles = merged(ended.parts)
        self._filed(ended.steps, singles.ops, singles.tensors)
        for part in ended.parts:
            if isinstance(part, BlockRun):
                self._tally.filed_block(part.pattern)

    def _count_dropped(self, steps: Iterable[EndedStep]) -> None:
        for ended in steps:
            self._tally.dropped(all_ops(ended.parts))
            self._tally.left_out(ended.counted)
