"""A query for operators of a dump."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from opdump.catalog.execution import Execution
from opdump.records import OpRecord, TensorRecord


@dataclass(frozen=True, slots=True)
class Asked:
    """A query for executions. `is_meant` may use everything that is the same in each step that runs the same, so neither arguments nor numbers;
    None selects all.
    """

    include_skipped: bool
    is_meant: Callable[[Execution], bool] | None = None

    def of(self, execution: Execution) -> Execution | None:
        """Return the part of an execution that the query selects, or None if it does not select the execution."""
        if not self.include_skipped:
            if execution.op.skip:
                return None
            if any(tensor.skip for tensor in execution.tensors):
                execution = Execution(execution.op, tuple(tensor for tensor in execution.tensors if not tensor.skip))
        return execution if self.is_meant is None or self.is_meant(execution) else None

    def places(self, executions: Iterable[Execution]) -> list[int]:
        """Return the indices of the selected executions."""
        return [place for place, execution in enumerate(executions) if self.of(execution) is not None]


def first_of(choices: Sequence[Asked], executions: Iterable[Execution]) -> int:
    """Return the index of the first choice that selects any of these executions, or the number of choices if none does."""
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
    """Yield the operators of a step with their tensors."""
    by_operator: dict[int, list[TensorRecord]] = {}
    for tensor in tensors:
        by_operator.setdefault(id(tensor.op), []).append(tensor)
    for op in ops:
        yield Execution(op, tuple(by_operator.get(id(op), ())))
