"""Files what was recorded: the elements of tensors, at once or with their step, and a step that has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from opdump.layouts.base import RankWriter
from opdump.plan import DumpPlan
from opdump.recorder.bounds import Bounds
from opdump.recorder.live_checks import LiveChecks, Lookout
from opdump.recorder.program_facts import Tally
from opdump.recorder.snapshots import TensorSnapshot
from opdump.recorder.step_parts import EndedStep, Ring, all_ops, count_tensors, merged
from opdump.records import OpRecord, TensorRecord
from opdump.step_table import TemplateRun
from opdump.verdict import Verdict

# Writes elements in layouts that write tensor by tensor: at once, except elements that are still being copied from a device.


class TensorFiles:
    """Tensors, constants and operator arguments that wait for the writer of a layout with a file per tensor. Other layouts ignore them."""

    def __init__(self, plan: DumpPlan, writer: RankWriter, bounds: Bounds) -> None:
        self._bounds = bounds
        self._writer = writer
        self.are_written: Final = plan.layout_facts.files == "tensors"
        self._copies = plan.layout_facts.copies_elements
        """`write_payload` copies elements before it returns, so that no other copy is needed."""
        self._tensors: list[TensorSnapshot] = []
        self.waiting_bytes = 0
        """Bytes of the tensors that wait for the writer."""
        self._constants: list[tuple[int, TensorSnapshot]] = []
        self._with_arguments: set[tuple[int, int, str]] = set()

    @property
    def are_waiting(self) -> bool:
        return bool(self._tensors)

    def add(self, taken: TensorSnapshot) -> None:
        """Add a tensor with elements."""
        self._tensors.append(taken)
        self.waiting_bytes += taken.held_bytes

    def add_constant(self, data_id: int, taken: TensorSnapshot) -> None:
        """Add a constant. It is written now unless it is still being copied from a device."""
        if taken.elements is not None and not taken.skip:
            self._constants.append((data_id, taken))
            if not taken.elements.are_pending:
                self._write_constants()

    def write_arguments(self, op: OpRecord) -> None:
        """Write the non-tensor arguments of an operator, once per step."""
        key = (op.graph_id, op.step, op.op_name)
        if op.arguments and key not in self._with_arguments:
            self._with_arguments.add(key)
            self._writer.write_kernel_args(op)

    def own_waiting(self) -> None:
        """Copy waiting elements that are still memory of the program, because the program continues now."""
        for entry in self._tensors:
            if entry.elements is not None:
                entry.elements.own()

    def write_ready(self) -> None:
        """Write elements that are in host memory. Elements that are being copied from a device wait for the end of the step."""
        later = []
        for entry in self._tensors:
            if entry.elements is not None and entry.elements.are_pending:
                later.append(entry)
            else:
                self._write(entry)
        self._tensors, self.waiting_bytes = later, sum(entry.held_bytes for entry in later)

    def write_all(self) -> None:
        self._write_constants()
        for entry in self._tensors:
            self._write(entry)
        self.forget_tensors()

    @property
    def copies(self) -> bool:
        """Whether elements go to the writer at once, which copies them."""
        return self._copies and self.are_written

    def write_followed(self, record: TensorRecord, size: int) -> str | None:
        """Write the elements of a tensor without a snapshot, `size` bytes. Return their location, or None if there is no room."""
        return self._writer.write_payload(record) if self._bounds.has_room(record.op.step, size) else None

    def write_kept(self, tensors: Iterable[TensorSnapshot]) -> None:
        """Write elements that were kept in memory with their step. This class keeps none; `RingElements` does."""

    def forget_tensors(self) -> None:
        self._tensors, self.waiting_bytes = [], 0

    def forget(self) -> None:
        self.forget_tensors()
        self._constants = []

    def end_step(self) -> None:
        """Start a new step, in which the arguments of operators are written again."""
        self._with_arguments.clear()

    def _write_constants(self) -> None:
        waiting, self._constants = self._constants, []
        for data_id, taken in waiting:
            if self._has_room(taken):
                self._writer.write_constant(data_id, taken.record())

    def _write(self, entry: TensorSnapshot) -> None:
        elements = entry.elements
        if not self.are_written or elements is None or not elements.are_held:
            return  # written before, in a call that was cut off by Ctrl-C or a full disk
        elements.filed(self._writer.write_payload(entry.record(lent=self._copies)) if self._has_room(entry) else None)

    def _has_room(self, entry: TensorSnapshot) -> bool:
        return entry.elements is None or self._bounds.has_room(entry.op.step, entry.elements.nbytes)


# Keeps elements in memory with their step, for a ring: they are written when the ring writes the step, or dropped with it.


class RingElements(TensorFiles):
    """Keeps the elements of the running step as long as they fit into memory. Constants wait for the first step that is written."""

    def __init__(
        self, plan: DumpPlan, writer: RankWriter, bounds: Bounds, make_room: Callable[[int, int], bool]
    ) -> None:
        """`make_room` is called with a step and a size in bytes, and returns whether that fits beside the earlier steps."""
        super().__init__(plan, writer, bounds)
        self._make_room = make_room
        self._bytes = 0
        """Bytes of the elements of the running step."""

    @property
    def copies(self) -> bool:
        """False: elements stay with the step."""
        return False

    def add(self, taken: TensorSnapshot) -> None:
        """Keep the elements of a tensor. If they do not fit, all elements of the step are dropped and no more are recorded."""
        assert taken.elements is not None
        if not self._bounds.takes_elements:
            taken.elements.filed(None)
            return
        self._tensors.append(taken)
        size = self._bytes + taken.kept_bytes
        if self._make_room(taken.op.step, size):
            taken.elements.own()
            self._bytes = size
            return
        for entry in self._tensors:
            if entry.elements is not None:
                entry.elements.filed(None)
        self.forget_tensors()
        self._bounds.ring_has_no_room(taken.op.step)

    def add_constant(self, data_id: int, taken: TensorSnapshot) -> None:
        if taken.elements is not None and not taken.skip:
            taken.elements.own()
            self._constants.append((data_id, taken))

    def write_ready(self) -> None:
        """Do nothing: elements stay with the step."""

    def write_all(self) -> None:
        """Do nothing: elements stay with the step."""

    def write_kept(self, tensors: Iterable[TensorSnapshot]) -> None:
        """Write the waiting constants, and the elements of a step."""
        self._write_constants()
        for entry in tensors:
            self._write(entry)

    def forget_tensors(self) -> None:
        super().forget_tensors()
        self._bytes = 0

    def end_step(self) -> None:
        """Hand the elements of the step over to the ring."""
        super().end_step()
        self.forget_tensors()

    def _has_room(self, entry: TensorSnapshot) -> bool:
        elements = entry.elements
        return elements is None or self._bounds.has_room(entry.op.step, elements.nbytes, are_kept=True)


# Processes a step that has ended: checks it, and writes it at once or, if the plan keeps the last steps in memory, when a trigger fires.


class StepFiling:
    """Passes steps to the writer and counts what became of them.

    `filed` receives the single records of each step that was written. `is_over` returns whether writing has become impossible.
    """

    def __init__(
        self,
        plan: DumpPlan,
        writer: RankWriter,
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
        self.files: Final = (
            RingElements(plan, writer, bounds, self._make_room)
            if plan.ring and plan.saves_tensors
            else TensorFiles(plan, writer, bounds)
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
            if isinstance(part, TemplateRun):
                self._tally.filed_run(part.template)

    def _count_dropped(self, steps: Iterable[EndedStep]) -> None:
        for ended in steps:
            self._tally.dropped(all_ops(ended.parts))
            self._tally.left_out(ended.counted)
