"""Which operators of a model leave data, and which of their slots."""

from __future__ import annotations

from collections.abc import Collection

from opdump.adapters.tensorflow.operator_kinds import DATA_TYPES, SKIPS
from opdump.plan import DumpPlan
from opdump.plan.list_matches import ListMatches
from opdump.plan.model_selection import ModelFilter
from opdump.records import IO, SkipReason


class ModelSlots:
    """What a plan, and the entries of its `dump_list` for one model, take of that model.

    `held` is what the entries' ranges hold (`ModelFilter.in_ranges`); `matched_kernels` collects the entries of the plan's `kernels`
    that matched an operator.
    """

    def __init__(
        self,
        plan: DumpPlan,
        model_filter: ModelFilter,
        held: frozenset[str] | None = None,
        matches: ListMatches | None = None,
    ) -> None:
        self._plan = plan
        self._filter = model_filter
        self._held = held
        self._matches = matches
        self._names_layers = any(entry.layers is not None for entry in model_filter.entries)
        self.matched_kernels: set[str] = set()

    @property
    def is_empty(self) -> bool:
        """Whether nothing of the model is dumped."""
        return self._filter.is_empty

    def skip_of(self, op_type: str, op_name: str, readers: Collection[str] = ()) -> SkipReason:
        """Why an operator leaves no data; empty where it does.

        `readers` are the operators that read it: what brings data in is dumped together with an operator that is chosen by name.
        """
        if self._matches is not None:
            self._matches.operator(self._filter.entries, op_name, (op_name,), op_type)
        if self._names_layers and op_type in DATA_TYPES and any(self._filter.selects(name) for name in readers):
            return ""
        reason = SKIPS.get(op_type, "")
        if reason:
            return reason
        if not (self._filter.selects(op_name, held=self._held) and self._plan.selects(op_name, op_type)):
            return "not selected"
        self.matched_kernels.update(self._plan.matching_kernels(op_name, op_type))
        return ""

    def excluded(self, op_name: str, op_type: str, io: IO) -> frozenset[int]:
        """The slots that the blacklists leave out."""
        return self._filter.excluded(op_name, op_type, io)
