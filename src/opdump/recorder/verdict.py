"""Finds the verdict of a run while it goes on: the first NaN, infinity, overflow or failure.

    lookout = Lookout(plan.mode)
    lookout.end_step(0, ops, tensors)        # for each step, in order
    lookout.verdict

A step without NaN and infinities costs one look at the counts of each tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from opdump.checks.not_finite import PARAMETER, ObservedTensor, Origins, Update, has_nan, is_update, not_finite, written
from opdump.checks.operator_classes import writes_variable
from opdump.plan import Mode
from opdump.records import OpRecord
from opdump.statistics import SummaryStatistics
from opdump.step_columns import BlockPattern, Singles, StepColumns, TensorFacts, columns_of
from opdump.verdict import Verdict, VerdictKind

_CHANGED: Final = "changed since"
_FLOATING: Final = ("float", "bfloat", "complex")


class OwnedTensor(ObservedTensor, Protocol):
    """A tensor with a reference to its operator."""

    @property
    def op(self) -> OpRecord: ...
    @property
    def slot(self) -> int: ...
    @property
    def dtype(self) -> str: ...


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
        self._updates: WeakKeyDictionary[BlockPattern, Sequence[Update]] = WeakKeyDictionary()

    @property
    def verdict(self) -> Verdict:
        if self._found is not None:
            return replace(self._found, mode=self._mode.name, tensors=self._tensors, not_looked=self._not_looked)
        if self._mode.verdict is None and not self._tensors:
            return Verdict(kind="not looked", mode=self._mode.name, not_looked=self._not_looked)
        return Verdict(
            kind="none", mode=self._mode.name, how=self._meant, tensors=self._tensors, not_looked=self._not_looked
        )

    def end_step(self, step: int, ops: Sequence[OpRecord], tensors: Sequence[OwnedTensor]) -> None:
        """Examine the operators of a step, or of a part of it, in execution order, with all their tensors and statistics."""
        if self._found is not None:
            return
        if not self._mode.files_selected:
            self._look_at_files(step, ops)
            return
        columns = columns_of(ops, tensors)
        if columns is None:
            not_finite_in = self._look(tensors)
            writing = _writing({op.op_type for op in ops})
            if not not_finite_in and not writing:
                return
        else:
            places = self._look_at_columns(columns)
            writing = _writing(columns.op_types)
            if not places:
                if writing:
                    self._note_updates(columns)
                    self._origins.end_step(step)
                return
            if not writing and not self._observe_columns(columns, places) and not self._origins.unexplained[0]:
                self._origins.end_step(step)
                return
            not_finite_in = {id(tensors[place].op) for place in places}
        # The tensors of other operators are left out to save time: steps with -Inf in a mask are common.
        of_op: dict[int, list[OwnedTensor]] = {}
        for tensor in tensors:
            if id(tensor.op) in not_finite_in or tensor.op.op_type in writing:
                of_op.setdefault(id(tensor.op), []).append(tensor)
        if columns is None or writing:
            for op in ops:
                self._origins.observe(op, of_op.get(id(op), ()))
        kind, name = self._origins.origin()
        if not kind and _gave_finite(self._origins.unexplained[1], tensors):
            reader, source = self._origins.unexplained
            maker = source.rpartition(":")[0]
            kind, name = "read", f"{_CHANGED} {maker} by something other than an operator (read by {reader})"
        if kind == "meant":
            self._meant = self._meant or name
        elif kind:
            self._found = _found(step, name, ops, of_op, is_made=kind == "made")
        self._origins.end_step(step)

    def _observe_columns(self, columns: StepColumns, places: Sequence[int]) -> bool:
        """Create records only for the operators that have one of these tensors. Return whether there is a verdict."""
        begin = 0
        for place, op, tensors in columns.executions(places):
            self._origins.ran(columns.op_names(begin, place))
            self._origins.observe(op, tensors)
            begin = place + 1
        self._origins.ran(columns.op_names(begin))
        kind, name = self._origins.origin()
        if kind == "meant":
            self._meant = self._meant or name
        return kind not in ("", "meant")

    def _note_updates(self, columns: StepColumns) -> None:
        """Note which operators update variables in a step in which all values are finite."""
        alone: dict[int, set[tuple[int, ...]]] = {}
        for part in columns.parts:
            if isinstance(part, Singles):
                for tensor in part.tensors:
                    if not tensor.skip:
                        alone.setdefault(id(tensor.op), set()).add(tensor.shape)
        for part in columns.parts:
            if isinstance(part, Singles):
                updates = [op for op in part.ops if is_update(op.op_type)]
                self._origins.observe_updates([(op.op_name, frozenset(alone.get(id(op), ()))) for op in updates])
            else:
                self._origins.observe_updates(self._updates_of(part.pattern))

    def _updates_of(self, pattern: BlockPattern) -> Sequence[Update]:
        """Return the operators of a block that update variables, for blocks in which all values are finite."""
        found = self._updates.get(pattern)
        if found is None:
            shapes: dict[int, set[tuple[int, ...]]] = {}
            for place, *_, tensor in pattern.sequence.slots:
                facts = pattern.facts[tensor]
                if not facts.skip:
                    shapes.setdefault(place, set()).add(facts.shape)
            found = self._updates[pattern] = [
                (op.op_name, frozenset(shapes.get(place, ())))
                for place, op in enumerate(pattern.sequence.ops)
                if is_update(op.op_type)
            ]
        return found

    def _look(self, tensors: Iterable[OwnedTensor]) -> set[int]:
        """Count the tensors that can be examined. Return the identities of the operators with NaN or infinities."""
        found: set[int] = set()
        for tensor in tensors:
            statistics = tensor.statistics
            if type(statistics) is SummaryStatistics:  # isinstance calls the abstract base class, which is slow
                self._tensors += 1
                summary = statistics.summary
                if summary.nan or summary.positive_inf or summary.negative_inf:
                    found.add(id(tensor.op))
            elif not tensor.skip:
                count = not_finite(statistics)
                if count:
                    found.add(id(tensor.op))
                if count is not None or "max" in statistics:
                    self._tensors += 1
                elif tensor.dtype.startswith(_FLOATING):
                    self._not_looked += 1
        return found

    def _look_at_columns(self, columns: StepColumns) -> list[int]:
        """Like `_look`, but without creating records. Return the places of tensors with NaN or infinities."""
        self._tensors += len(columns.summaries) - len(columns.bare)
        found = [*columns.not_finite]
        for place, bare in zip(columns.bare, columns.bare_tensors(), strict=True):
            if not isinstance(bare, TensorFacts):
                found += [place] if self._look([bare]) else []
            elif not bare.skip and bare.dtype.startswith(_FLOATING):
                self._not_looked += 1
        return found

    def _look_at_files(self, step: int, ops: Iterable[OpRecord]) -> None:
        """Take the first operator as the verdict: in these modes only what they look for is written."""
        op = next((op for op in ops if not op.skip and op.op_type != PARAMETER), None)
        if self._mode.verdict is not None and op is not None:
            self._found = _of_op(self._mode.verdict, step, op, "")


def _gave_finite(source: str, tensors: Iterable[OwnedTensor]) -> bool:
    """Return whether the operator in `source` wrote finite numbers into that output each time it ran."""
    name, _, slot = source.rpartition(":")
    counts = [
        not_finite(tensor.statistics)
        for tensor in tensors
        if tensor.io == "output" and str(tensor.slot) == slot and tensor.op.op_name == name and not tensor.skip
    ]
    return bool(counts) and not any(count is None or count for count in counts)


def _writing(op_types: Iterable[str]) -> set[str]:
    return {op_type for op_type in op_types if writes_variable(op_type)}


def _found(
    step: int, name: str, ops: Sequence[OpRecord], of_op: Mapping[int, Sequence[OwnedTensor]], *, is_made: bool
) -> Verdict:
    """Return the verdict for the operator `name`. If no operator of the step has that name, use the first reader of the source that `name`
    describes.
    """
    bad = [(op, tensor) for op in ops for tensor in written(op, of_op.get(id(op), ())) if not_finite(tensor.statistics)]
    given = [(op, tensor) for op, tensor in bad if op.op_name == name and tensor.io == "output"]
    readers = [(op, tensor) for op, tensor in bad if name == op.op_name or name.endswith(f"(read by {op.op_name})")]
    op, tensor = (given or readers or bad)[0]
    kind: VerdictKind = "nan" if has_nan(tensor.statistics) else "infinity"
    amount = _amount(tensor)
    if given and is_made:
        return _of_op(kind, step, op, amount)
    maker = next((op for op in ops if op.op_name == name), None)
    if maker is not None and is_made:
        return _of_op(kind, step, maker, f"not recorded there; {amount} of {op.op_name}, which read it")
    if is_made:
        return _of_op(kind, step, op, f"{amount}; made by {name}")
    if name.startswith(_CHANGED):
        return _of_op(kind, step, op, f"{amount}, in memory that was {name}")
    where = "in memory that no recorded operator wrote" if name.startswith("data-") else "which was there before"
    return _of_op(kind, step, op, f"{amount}, {where}: {name}")


def _amount(tensor: OwnedTensor) -> str:
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
