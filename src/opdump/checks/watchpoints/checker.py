"""WatchpointChecker: watchpoints over the tensors of one rank, operator by operator, step by step.

checker = WatchpointChecker(watchpoints)
checker.observe(op, tensors)        # of each operator in execution order; weights wait for the end of the step
checker.end_step(step)
checker.hits
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from opdump.checks.watchpoints.measured import Measured
from opdump.checks.watchpoints.targets import Role, SeenTensor, Targets
from opdump.checks.watchpoints.watchpoint import NO_VALUE, Outcome, WatchHit, Watchpoint
from opdump.records import OpRecord

_Weight = tuple[OpRecord, SeenTensor, Measured, Role]
_NOT_READ: Final = Outcome((), NO_VALUE, "not checked: what it was before the step is not in the dump")


class WatchpointChecker:
    """Collects `hits`, including those for tensors that could not be checked."""

    def __init__(self, watchpoints: Sequence[Watchpoint]) -> None:
        self._watchpoints: Final = watchpoints
        self.hits: list[WatchHit] = []
        self.looked: Counter[str] = Counter()
        """The tensors that each watchpoint, by its text, checked; for an overflow watchpoint, the overflows."""
        self._targets = Targets()
        self._read: dict[str, _Weight] = {}
        self._ended: dict[str, _Weight] = {}
        self._previous: dict[tuple[str, str], Measured] = {}
        self._previous_step: int | None = None
        self.has_history = any(each.condition.needs_history for each in watchpoints)

    def observe(self, op: OpRecord, tensors: Sequence[tuple[SeenTensor, Measured]]) -> None:
        """Process the next operator of the step, in execution order."""
        has_outputs = any(tensor.io == "output" for tensor, _ in tensors)
        for tensor, measured in tensors:
            role = self._targets.role(op, tensor.io, tensor.source, tensor.dtype, tensor.shape, has_outputs=has_outputs)
            if role.weight:
                kept = self._read if role.moment == "read" else self._ended
                kept[role.weight] = (op, tensor, measured, role)
            elif role.targets:
                self._check(op, tensor, measured, role)

    def overflowed(self, op: OpRecord, text: str) -> None:
        """Process an overflow of an operator, reported by a device or a dump of overflows."""
        for watchpoint in self._watchpoints:
            if watchpoint.condition.kind == "device overflow" and watchpoint.is_for(op, op.op_name):
                self.looked[watchpoint.text] += 1
                self.hits.append(_hit(watchpoint, op, None, Outcome(text=text)))

    def end_step(self, step: int) -> None:
        """Check the weights of the step: as it left them or, if unavailable, as it read them."""
        is_next = self._previous_step is not None and step == self._previous_step + 1
        now: dict[tuple[str, str], Measured] = {}
        for name in {**self._read, **self._ended}:
            op, tensor, measured, role = self._ended.get(name) or self._read[name]
            if self.has_history:
                measured.previous = self._previous.get((name, role.moment)) if is_next else None
                now[name, role.moment] = measured
            self._check(op, tensor, measured, role, initial=self._read.get(name))
            measured.previous = None
        self._read, self._ended, self._previous, self._previous_step = {}, {}, now, step
        self._targets.end_step()

    def _check(
        self, op: OpRecord, tensor: SeenTensor, measured: Measured, role: Role, initial: _Weight | None = None
    ) -> None:
        if not measured.count:
            return
        is_complex = tensor.dtype.startswith("complex")
        for watchpoint in self._watchpoints:
            condition = watchpoint.condition
            if condition.target not in role.targets or condition.kind == "device overflow":
                continue
            if not watchpoint.is_for(op, role.weight or op.op_name):
                continue
            if condition.first_step_only:
                if op.step != 0:
                    continue
                if condition.target == "weight" and initial is None:
                    self._add(watchpoint, op, tensor, _NOT_READ)
                    continue
                if initial is not None:  # its value before the step changed it
                    at, of, was, _ = initial
                    self._add(watchpoint, at, of, watchpoint.look(was, is_complex=is_complex))
                    continue
            self._add(watchpoint, op, tensor, watchpoint.look(measured, is_complex=is_complex))
        measured.release()
        if initial is not None:
            initial[2].release()

    def _add(self, watchpoint: Watchpoint, op: OpRecord, tensor: SeenTensor, outcome: Outcome) -> None:
        self.looked[watchpoint.text] += 1
        if outcome:
            self.hits.append(_hit(watchpoint, op, tensor, outcome))


def in_order_of_time(hits: Sequence[WatchHit]) -> list[WatchHit]:
    """The earliest first."""
    return sorted(hits, key=lambda each: (each.timestamp, each.rank or 0, each.order))


def _hit(watchpoint: Watchpoint, op: OpRecord, tensor: SeenTensor | None, outcome: Outcome) -> WatchHit:
    return WatchHit(
        condition=watchpoint.condition.id,
        watchpoint=watchpoint.text,
        text=outcome.text,
        error_code=outcome.error_code,
        parameters=outcome.satisfied,
        op_name=op.op_name,
        op_type=op.op_type,
        net_name=op.net_name,
        rank=op.rank_id,
        step=op.step,
        timestamp=op.timestamp,
        order=op.order,
        occurrence=op.occurrence,
        source=f"{op.stack[0].file}:{op.stack[0].line}" if op.stack else "",
        io=None if tensor is None else tensor.io,
        slot=None if tensor is None else tensor.slot,
        argument="" if tensor is None else tensor.argument,
        dtype="" if tensor is None else tensor.dtype,
        shape=() if tensor is None else tensor.shape,
    )
