"""Selects the operators of a graph to record, and their slots."""

from __future__ import annotations

from collections.abc import Iterable

from opdump.plan import DumpPlan
from opdump.plan.selection import ModelFilter
from opdump.records import IO


class OperatorSelection:
    """The selection of a plan, and of the entries of its `dump_list` for one graph.

    `held` are the operators in the ranges of the entries (`ModelFilter.in_ranges`). `matched_kernels` collects the entries of the plan's
    `kernels` that matched an operator.
    """

    def __init__(self, plan: DumpPlan, model_filter: ModelFilter, held: frozenset[str] | None = None) -> None:
        self._plan = plan
        self._filter = model_filter
        self._held = held
        self.matched_kernels: set[str] = set()
        is_whole = plan.mode.detects_overflow  # overflow can only be judged from inputs and outputs together
        self.wants_inputs = plan.inputs or is_whole
        self.wants_outputs = plan.outputs or is_whole

    @property
    def is_empty(self) -> bool:
        return self._filter.is_empty

    def wants(self, io: IO) -> bool:
        """Whether inputs, or outputs, are recorded at all."""
        return self.wants_inputs if io == "input" else self.wants_outputs

    def names(self, op_name: str) -> bool:
        """Whether the entries of the `dump_list` name this operator, or select all."""
        return self._filter.selects(op_name)

    def selects(self, op_name: str, op_type: str, original_names: Iterable[str] = ()) -> bool:
        """Whether an operator is recorded. `original_names` are other names that select it: those of the operators that it replaces."""
        original_names = tuple(original_names)
        names = (op_name, *original_names)
        if not self._filter.selects(op_name, original_names, self._held) or not any(
            self._plan.selects(name, op_type) for name in names
        ):
            return False
        self.matched_kernels.update(entry for name in names for entry in self._plan.matching_kernels(name, op_type))
        return True

    def excluded(self, op_name: str, op_type: str, io: IO) -> frozenset[int]:
        """The slots that the blacklists exclude."""
        return self._filter.excluded(op_name, op_type, io)
