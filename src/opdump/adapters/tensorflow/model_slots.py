"""Which operators of a model leave data, and which of their slots."""

from __future__ import annotations

from collections.abc import Collection

from opdump.adapters.graph_runtime import OperatorSelection
from opdump.adapters.tensorflow.operator_kinds import DATA_TYPES, SKIPS
from opdump.plan import DumpPlan
from opdump.plan.list_matches import ListMatches
from opdump.plan.model_selection import ModelFilter
from opdump.records import SkipReason


class ModelSlots(OperatorSelection):
    """What a plan takes of one model; `matches` collects which names of the `dump_list` its operators have."""

    def __init__(
        self, plan: DumpPlan, model_filter: ModelFilter, held: frozenset[str] | None, matches: ListMatches
    ) -> None:
        super().__init__(plan, model_filter, held)
        self._entries = model_filter.entries
        self._matches = matches
        self._names_layers = any(entry.layers is not None for entry in model_filter.entries)

    def skip_of(self, op_type: str, op_name: str, readers: Collection[str] = ()) -> SkipReason:
        """Why an operator leaves no data; empty where it does.

        `readers` are the operators that read it: what brings data in is dumped together with an operator that is chosen by name.
        """
        self._matches.operator(self._entries, op_name, (op_name,), op_type)
        if self._names_layers and op_type in DATA_TYPES and any(self.names(reader) for reader in readers):
            return ""
        return SKIPS.get(op_type, "") or ("" if self.selects(op_name, op_type) else "not selected")
