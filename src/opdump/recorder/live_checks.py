"""Judges a run while it is running: jumps of the loss, the verdict, and the checks of `opdump check`.

lookout = Lookout(plan.mode)
lookout.end_step(0, ops, tensors)        # for each step, in order
lookout.verdict

live.look(op, "output", tensors)     before the recorder reads them: examines elements that watchpoints need
live.end_step(step, ops, tensors)    checks the rest, from statistics
live.checked()
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import Final
from weakref import WeakKeyDictionary

from opdump.checks import Checks, Thresholds
from opdump.checks.nonfinite_lineage import Checked, Histories
from opdump.checks.not_finite import PARAMETER, Origins, Update, has_nan, is_update, not_finite, written
from opdump.checks.operator_classes import writes_variable
from opdump.checks.tensor_checks import TensorStats, stats_of, stats_of_summary
from opdump.checks.watchpoints import Measured, Targets, Watchpoint, WatchpointChecker, in_order_of_time
from opdump.configs.watchpoints import watchpoints_of
from opdump.plan import DumpPlan, Mode
from opdump.recorder.snapshots import Elements, LiveTensor, Reader, SupportsElements
from opdump.records import IO, FiledTensor, OpRecord, TensorRecord, record_of
from opdump.statistics import SummaryStatistics
from opdump.step_table import Singles, StepTable, StepTemplate, TensorFacts
from opdump.verdict import Verdict, VerdictKind

# Triggers on a jump of the loss, for the steps in memory (`ring`).
#
# A loss is a spike if it exceeds the median of the previous losses by more than eight standard deviations, estimated from the median absolute
# deviation, and by more than half of the median. The last 64 losses count, and at least eight are needed. If losses stay high, only the first one
# fires. NaN and infinities have triggers of their own.

_WINDOW: Final = 64
_FEWEST: Final = 8
_DEVIATIONS: Final = 8
_NORMAL: Final = 1.4826
"""Ratio of the standard deviation of a normal distribution to its median absolute deviation."""
_LEAST_RISE: Final = 0.5


class LossSpikes:
    """Judges the loss of each step. `fire` receives a text such as `loss-spike in step 12: 8.31, the median before is 0.42`."""

    def __init__(self, fire: Callable[[str], object]) -> None:
        self._fire = fire
        self._before: deque[float] = deque(maxlen=_WINDOW)
        self._of_step: list[float] = []
        self._is_up = False
        self._is_told = False
        self.seen = False
        """Whether any loss was seen."""

    def note(self, loss: float) -> None:
        """Note the loss of a backward pass in this step; if there are several, their mean counts. Ignored once the program has passed a loss to
        `tell`.
        """
        if not self._is_told:
            self._of_step.append(loss)

    def end_step(self, step: int) -> None:
        """Judge what was noted in the step that ends."""
        losses, self._of_step = self._of_step, []
        if losses:
            self._judge(step, math.fsum(losses) / len(losses) if all(map(math.isfinite, losses)) else math.nan)

    def tell(self, step: int, loss: float) -> None:
        """Judge the loss that the program reports for this step."""
        self._is_told = True
        self._of_step = []
        self._judge(step, loss)

    def _judge(self, step: int, loss: float) -> None:
        self.seen = True
        if not math.isfinite(loss):
            return
        was_up, self._is_up = self._is_up, False
        if len(self._before) >= _FEWEST:
            usual = median(self._before)
            spread = _NORMAL * median(abs(each - usual) for each in self._before)
            self._is_up = loss - usual > max(_DEVIATIONS * spread, _LEAST_RISE * abs(usual))
            if self._is_up and not was_up:
                self._fire(f"loss-spike in step {step}: {loss:.6g}, the median before is {usual:.6g}")
        self._before.append(loss)


# Finds the verdict of a run while it is running: the first NaN, infinity, overflow or failure.
#
# A step without NaN and infinities costs one look at the counts of each tensor.

_CHANGED: Final = "changed since"
_FLOATING: Final = ("float", "bfloat", "complex")


class Lookout:
    """Examines each step of one rank until something is found."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._found: Verdict | None = None
        self._meant = ""
        """The first operator that wrote infinities on purpose, into a mask."""
        self._tensors = 0
        self._not_looked = 0
        self._origins = Origins()
        self._updates: WeakKeyDictionary[StepTemplate, Sequence[Update]] = WeakKeyDictionary()

    @property
    def verdict(self) -> Verdict:
        if self._found is not None:
            return replace(self._found, mode=self._mode.name, tensors=self._tensors, not_looked=self._not_looked)
        if self._mode.verdict is None and not self._tensors:
            return Verdict(kind="not looked", mode=self._mode.name, not_looked=self._not_looked)
        return Verdict(
            kind="none", mode=self._mode.name, how=self._meant, tensors=self._tensors, not_looked=self._not_looked
        )

    def end_step(self, step: int, ops: Sequence[OpRecord], tensors: Sequence[FiledTensor]) -> None:
        """Examine the operators of a step, or of a part of it, in execution order, with all their tensors and statistics."""
        if self._found is not None:
            return
        if not self._mode.files_selected:
            self._look_at_files(step, ops)
            return
        table = StepTable.of(ops, tensors)
        writing = {op_type for op_type in table.op_types if writes_variable(op_type)}
        places = self._look(table)
        if not places:
            if writing:
                self._note_updates(table)
                self._origins.end_step(step)
            return
        if not writing:
            self._observe(table, {int(table.owners[place]) for place in places})
            kind, name = self._origins.origin()
            if kind in ("", "meant") and not self._origins.unexplained[0]:
                self._meant = self._meant or name
                self._origins.end_step(step)
                return
        of_op = _by_operator(tensors, {id(tensors[place].op) for place in places}, writing)
        if writing:
            for op in ops:
                self._origins.observe(op, of_op.get(id(op), ()))
        self._judge(step, ops, tensors, of_op)

    def _judge(
        self,
        step: int,
        ops: Sequence[OpRecord],
        tensors: Sequence[FiledTensor],
        of_op: Mapping[int, Sequence[FiledTensor]],
    ) -> None:
        """Take the verdict from the origin of the step, whose operators have been observed."""
        kind, name = self._origins.origin()
        if not kind and _gave_finite(self._origins.unexplained[1], tensors):
            reader, source = self._origins.unexplained
            maker = source.rpartition(":")[0]
            kind, name = "read", f"{_CHANGED} {maker} by something other than an operator (read by {reader})"
        if kind == "meant":
            self._meant = self._meant or name
        elif kind:
            known = ((op, tensor) for op in ops for tensor in written(op, of_op.get(id(op), ())))
            bad = [(op, tensor) for op, tensor in known if not_finite(tensor.statistics)]
            self._found = _found(step, name, ops, bad, is_made=kind == "made")
        self._origins.end_step(step)

    def _observe(self, table: StepTable[FiledTensor], places: Collection[int]) -> None:
        """Observe the step. Records are created only for the operators with these indices; -1 is an operator that was written before."""
        begin = 0
        for place in sorted(each for each in places if each >= 0):
            self._origins.ran(table.op_names(begin, place))
            self._origins.observe(*table.execution(place))
            begin = place + 1
        self._origins.ran(table.op_names(begin))

    def _note_updates(self, table: StepTable[FiledTensor]) -> None:
        """Note which operators update variables in a step in which all values are finite."""
        alone: dict[int, set[tuple[int, ...]]] = {}
        for part in table.parts:
            if isinstance(part, Singles):
                for tensor in part.tensors:
                    if not tensor.skip:
                        alone.setdefault(id(tensor.op), set()).add(tensor.shape)
        for part in table.parts:
            if isinstance(part, Singles):
                updates = [op for op in part.ops if is_update(op.op_type)]
                self._origins.observe_updates([(op.op_name, frozenset(alone.get(id(op), ()))) for op in updates])
            else:
                self._origins.observe_updates(self._updates_of(part.template))

    def _updates_of(self, template: StepTemplate) -> Sequence[Update]:
        """Return the operators of a template that update variables, for runs in which all values are finite."""
        found = self._updates.get(template)
        if found is None:
            shapes: dict[int, set[tuple[int, ...]]] = {}
            for place, *_, tensor in template.slots:
                facts = template.facts[tensor]
                if not facts.skip:
                    shapes.setdefault(place, set()).add(facts.shape)
            found = self._updates[template] = [
                (op.op_name, frozenset(shapes.get(place, ())))
                for place, op in enumerate(template.ops)
                if is_update(op.op_type)
            ]
        return found

    def _look(self, table: StepTable[FiledTensor]) -> list[int]:
        """Count the tensors that can be examined. Return the places of tensors with NaN or infinities."""
        self._tensors += len(table.summaries) - len(table.bare)
        found: list[int] = table.not_finite.tolist()
        for place, bare in zip(table.bare, table.bare_tensors(), strict=True):
            if bare.skip:
                continue
            statistics = {} if isinstance(bare, TensorFacts) else bare.statistics
            count = not_finite(statistics)
            if count:
                found.append(place)
            if count is not None or "max" in statistics:
                self._tensors += 1
            elif bare.dtype.startswith(_FLOATING):
                self._not_looked += 1
        return found

    def _look_at_files(self, step: int, ops: Iterable[OpRecord]) -> None:
        """Take the first operator as the verdict: in these modes only what they look for is written."""
        op = next((op for op in ops if not op.skip and op.op_type != PARAMETER), None)
        if self._mode.verdict is not None and op is not None:
            self._found = _of_op(self._mode.verdict, step, op, "")


def _gave_finite(source: str, tensors: Iterable[FiledTensor]) -> bool:
    """Return whether the operator in `source` wrote finite numbers into that output each time it ran."""
    name, _, slot = source.rpartition(":")
    counts = [
        not_finite(tensor.statistics)
        for tensor in tensors
        if tensor.io == "output" and str(tensor.slot) == slot and tensor.op.op_name == name and not tensor.skip
    ]
    return bool(counts) and not any(count is None or count for count in counts)


def _by_operator(
    tensors: Iterable[FiledTensor], not_finite_in: Collection[int], writing: Collection[str]
) -> dict[int, list[FiledTensor]]:
    """The tensors of each operator. Those of others are left out to save time: steps with -Inf in a mask are common."""
    of_op: dict[int, list[FiledTensor]] = {}
    for tensor in tensors:
        if id(tensor.op) in not_finite_in or tensor.op.op_type in writing:
            of_op.setdefault(id(tensor.op), []).append(tensor)
    return of_op


def _found(
    step: int, name: str, ops: Sequence[OpRecord], bad: Sequence[tuple[OpRecord, FiledTensor]], *, is_made: bool
) -> Verdict:
    """Return the verdict for the operator `name`, from the tensors with NaN or infinities. If no operator of the step has that name, use
    the first reader of the source that `name` describes.
    """
    given = [(op, tensor) for op, tensor in bad if op.op_name == name and tensor.io == "output"]
    readers = [(op, tensor) for op, tensor in bad if name == op.op_name or name.endswith(f"(read by {op.op_name})")]
    op, tensor = (given or readers or bad)[0]
    how = _amount(tensor)
    makers = {op.op_name: op for op in reversed(ops)}
    if not is_made:
        how = f"{how}, {_place_of(name)}"
    elif not given and name in makers:
        op, how = makers[name], f"not recorded there; {how} of {op.op_name}, which read it"
    elif not given:
        how = f"{how}; made by {name}"
    return _of_op("nan" if has_nan(tensor.statistics) else "infinity", step, op, how)


def _place_of(source: str) -> str:
    """Where NaN or infinities were that an operator of the step only read."""
    if source.startswith(_CHANGED):
        return f"in memory that was {source}"
    where = "in memory that no recorded operator wrote" if source.startswith("data-") else "which was there before"
    return f"{where}: {source}"


def _amount(tensor: FiledTensor) -> str:
    """Return text such as `3 of 32 elements of output.0`."""
    count, total = not_finite(tensor.statistics) or 0, tensor.statistics.get("count")
    place = f"{tensor.io}.{tensor.slot}"
    return f"{count:,} of {int(total):,} elements of {place}" if total is not None else place


def _of_op(kind: VerdictKind, step: int, op: OpRecord, how: str) -> Verdict:
    frame = op.stack[0] if op.stack else None
    return Verdict(
        kind=kind,
        step=step,
        op_name=op.op_name,
        op_type=op.kernel or op.op_type,
        phase=op.phase,
        file="" if frame is None else frame.file,
        line=0 if frame is None else frame.line,
        code="" if frame is None else frame.code,
        how=how,
    )


# The checks of `opdump check` while the program runs. They never stop it.
#
# Only numbers derived from elements are kept, except for weights that a watchpoint compares with the step before.

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
