"""What is asked for of the operators of a dump, and which of them it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from opdump.catalog.execution import Execution
from opdump.records import OpRecord, TensorRecord


@dataclass(frozen=True, slots=True)
class Asked:
    """Executions that are asked for. `is_meant` may look at all that is the same in each step that runs the same, not at arguments or
    numbers; None means any.
    """

    include_skipped: bool
    is_meant: Callable[[Execution], bool] | None = None

    def of(self, execution: Execution) -> Execution | None:
        """What of an execution is asked for; None where it is not."""
        if not self.include_skipped:
            if execution.op.skip:
                return None
            if any(tensor.skip for tensor in execution.tensors):
                execution = Execution(execution.op, tuple(tensor for tensor in execution.tensors if not tensor.skip))
        return execution if self.is_meant is None or self.is_meant(execution) else None

    def places(self, executions: Iterable[Execution]) -> list[int]:
        """The places of those among all that are asked for."""
        return [place for place, execution in enumerate(executions) if self.of(execution) is not None]


def first_of(choices: Sequence[Asked], executions: Iterable[Execution]) -> int:
    """The first of several choices that has any of these; their number where none has."""
    best = len(choices)
    for execution in executions:
        for number, choice in enumerate(choices[:best]):
            if choice.of(execution) is not None:
                best = number
                break
        if best == 0:
            break
    return best


def grouped(ops: Iterable[OpRecord], tensors: Iterable[TensorRecord]) -> Iterator[Execution]:
    """The operators of a step with their tensors."""
    by_operator: dict[int, list[TensorRecord]] = {}
    for tensor in tensors:
        by_operator.setdefault(id(tensor.op), []).append(tensor)
    for op in ops:
        yield Execution(op, tuple(by_operator.get(id(op), ())))
