"""The checks of `opdump check` while the program runs. They never stop it.

    live.look(op, "output", tensors)     before the recorder reads them: examines elements that watchpoints need
    live.end_step(step, ops, tensors)    checks the rest, from statistics
    live.checked()

Only numbers derived from elements are kept, except for weights that a watchpoint compares with the step before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from opdump.checks import Checks, Thresholds
from opdump.checks.histories import Checked, Histories
from opdump.checks.not_finite import PARAMETER
from opdump.checks.tensor_checks import TensorStats, stats_of, stats_of_summary
from opdump.checks.watchpoints import Measured, Targets, Watchpoint, WatchpointChecker, in_order_of_time
from opdump.configs.shared.watchpoints import watchpoints_of
from opdump.plan import DumpPlan
from opdump.recorder.snapshots import Elements, LiveTensor, Reader, SupportsElements
from opdump.records import IO, FiledTensor, OpRecord, TensorRecord, record_of
from opdump.statistics import SummaryStatistics

_Place = tuple[int, IO, int]
"""The time stamp of an operator, which is unique, the side, and the slot."""


class LiveChecks:
    """The checks of one rank."""

    def __init__(self, plan: DumpPlan, reader: Reader) -> None:
        """`reader` is the recorder's reader. If it cannot read elements, watchpoints use only statistics."""
        self._plan = plan
        self._reader = reader
        watchpoints = watchpoints_of(plan.checks or ())
        self._checker = WatchpointChecker(watchpoints)
        needing = [each for each in watchpoints if each.needs_elements]
        self._of_elements: Final = (
            reader.of_elements()
            if needing and plan.mode.files_selected and isinstance(reader, SupportsElements)
            else None
        )
        self._needing: Final = needing
        self._targets = Targets()
        self._looked_at = -1
        self._taken: dict[_Place, Measured] = {}
        self._pending: list[tuple[Measured, Elements, list[Watchpoint]]] = []
        self._checked = Checked(watchpoints=watchpoints)
        self._histories = Histories()
        self._checked.histories = self._histories.found
        self._checks: Checks | None = None
        self._step: int | None = None
        self._is_poisoned = False
        self._has_failed = False

    def look(self, op: OpRecord, io: IO, lives: Iterable[LiveTensor]) -> Iterable[LiveTensor]:
        """Examine the elements that watchpoints need on one side of an operator. Return the tensors of that side."""
        reader = self._of_elements
        if reader is None or self._has_failed:
            return lives
        lives = list(lives)
        with self._isolated_from_program():
            self._look(reader, op, io, lives)
        return lives

    def _look(self, reader: Reader, op: OpRecord, io: IO, lives: Sequence[LiveTensor]) -> None:
        if op.step != self._looked_at:
            self._targets.end_step()
            self._looked_at = op.step
        for slot, _, tensor, source, skip in lives:
            if skip:
                continue
            facts = self._reader.skip(tensor, "not selected")
            role = self._targets.role(op, io, source, facts.dtype, facts.shape, has_outputs=self._plan.outputs)
            wanted = [
                each
                for each in self._needing
                if each.condition.target in role.targets and each.is_for(op, role.weight or op.op_name)
            ]
            elements = reader.take(tensor).elements if wanted and "complex" not in facts.dtype else None
            if elements is None:
                continue
            measured = Measured(math.prod(facts.shape))
            self._taken[op.timestamp, io, slot] = measured
            if elements.are_pending:
                self._pending.append((measured, elements, wanted))
                if reader.must_finish:
                    self._finish(reader)
            else:
                _measure(measured, elements, wanted)

    def _finish(self, reader: Reader) -> None:
        reader.finish_step()
        pending, self._pending = self._pending, []
        for each in pending:
            _measure(*each)
        reader.clear()

    def end_step(self, step: int, ops: Sequence[OpRecord], tensors: Sequence[FiledTensor]) -> None:
        """Check the operators of a step, or of a part of it, in execution order, with all their tensors and statistics."""
        if not self._has_failed:
            with self._isolated_from_program():
                self._end_step(step, ops, tensors)

    @contextmanager
    def _isolated_from_program(self) -> Iterator[None]:
        """End only the checks if one of them fails (it may belong to another package), and report the failure among the problems."""
        try:
            yield
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001  a check of another package may raise anything
            self._has_failed = True
            self._taken.clear()
            self._checked.problems.append(f"the checks ended in step {self._step}: {type(error).__name__}: {error}")

    def _end_step(self, step: int, ops: Sequence[OpRecord], tensors: Sequence[FiledTensor]) -> None:
        if self._of_elements is not None:
            self._finish(self._of_elements)
        if step != self._step:
            self._close()
            self._checks = Checks(
                Thresholds(),
                is_first_step=self._step is None,
                is_poisoned=self._is_poisoned,
                histories=self._histories,
            )
            self._step = step
        of_op: dict[int, list[FiledTensor]] = {}
        for tensor in tensors:
            if not tensor.skip:
                of_op.setdefault(id(tensor.op), []).append(tensor)
        for op in ops:
            if not op.skip:
                self._observe(op, of_op.get(id(op), []))

    def _observe(self, op: OpRecord, tensors: Sequence[FiledTensor]) -> None:
        checks = self._checks
        assert checks is not None, "a step is open"
        records = [record_of(tensor) for tensor in tensors]
        known = [(record, stats) for record in records if (stats := _stats(record)) is not None]
        self._checked.tensors += len(records)
        self._checked.unknown += len(records) - len(known)
        self._checked.findings += checks.findings(op, known)
        if not self._checked.watchpoints:
            return
        if self._plan.mode.detects_overflow and op.op_type != PARAMETER:
            self._checker.overflowed(op, "overflow")
        self._checker.observe(op, [(record, self._measured(op, record)) for record in records])

    def _measured(self, op: OpRecord, record: TensorRecord) -> Measured:
        measured = self._taken.pop((op.timestamp, record.io, record.slot), None)
        if measured is None:
            return Measured(math.prod(record.shape), record.statistics)
        measured.statistics = record.statistics
        return measured

    def _close(self) -> None:
        """End the current step of the checks."""
        if self._checks is None or self._step is None:
            return
        self._checked.findings += self._checks.end_step()
        self._is_poisoned = self._checks.poisons
        self._checker.end_step(self._step)
        self._checks = None

    def checked(self) -> Checked:
        """Return what was found up to the last step that was written."""
        if not self._has_failed:
            with self._isolated_from_program():
                self._close()
        self._step = None
        self._checked.looked = self._checker.looked
        self._checked.hits = in_order_of_time(self._checker.hits)
        self._checked.findings.sort(key=lambda each: (each.step or 0, each.order))
        return self._checked


def _measure(measured: Measured, elements: Elements, wanted: Sequence[Watchpoint]) -> None:
    array = elements.on_host()
    measured.attach(lambda: array)
    for watchpoint in wanted:
        watchpoint.prepare(measured)
    if not any(watchpoint.condition.needs_history for watchpoint in wanted):
        measured.drop()


def _stats(record: TensorRecord) -> TensorStats | None:
    statistics = record.statistics
    if isinstance(statistics, SummaryStatistics):
        return stats_of_summary(statistics.summary)
    return stats_of(statistics, math.prod(record.shape)) if statistics else None
