"""Selects the operators of a compiled graph to record, among those that MindSpore's own dump contains.

"dump_mode": 0 and 1      selected by MindSpore; parameters only if the mode and the layout record them
"dump_mode": 2            operators that the graph marks (`set_dump`), backward ones too
"dump_list" of acl.json   layers, ranges and blacklists, by the names in the graph
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from opdump.adapters.graph_runtime import OperatorSelection
from opdump.adapters.mindspore.own_dump import chooses_by_name
from opdump.layouts.mindspore_sync.names import PARAMETER
from opdump.layouts.mindspore_sync.true_names import TrueNames
from opdump.plan import DumpPlan
from opdump.plan.selection import ModelFilter
from opdump.records import IO, OpRecord

_MARK = "dump"


class GraphSelection:
    """The selection of one graph. `marked_classes` are the names of Cell classes that `set_dump` marked; `names_in_files` maps names of
    operators in the graph to those in files, if they differ.
    """

    def __init__(
        self,
        plan: DumpPlan,
        names: TrueNames,
        order: Iterable[str],
        marked_classes: Iterable[str],
        names_in_files: Mapping[str, str],
    ) -> None:
        self._in_files = names_in_files
        self._plan = plan
        self._names = names
        model_filter = ModelFilter.of(plan.models, (plan.net_name,))
        self._slots = OperatorSelection(plan, model_filter, model_filter.in_ranges(list(order)))
        # A component of a full name is `{cell}-{class}/`.
        classes = "|".join(map(re.escape, sorted(marked_classes)))
        self._in_class = re.compile(rf"(?:^|/)[^/]*-(?:{classes})/") if classes else None

    @property
    def matched_kernels(self) -> set[str]:
        return self._slots.matched_kernels

    def is_value(self, op: OpRecord) -> bool:
        """Whether the record is a value that no operator made: a parameter."""
        return op.op_type == PARAMETER

    def selects(self, op: OpRecord) -> bool:
        if self.is_value(op):
            return self._plan.saves_values and self._plan.selection != "marked"
        if self._plan.selection == "marked":
            return self._is_marked(op) and self._slots.selects(op.op_name, op.op_type)
        op_name = self._in_files.get(op.op_name, op.op_name)
        if chooses_by_name(self._plan):
            # MindSpore has already applied `kernels`, in its own way. This call only notes which entries matched.
            self._slots.selects(op.op_name, op.op_type)
            return self._slots.names(op.op_name)
        return self._slots.selects(op_name, op.op_type)

    def excluded(self, op: OpRecord, io: IO) -> frozenset[int]:
        return self._slots.excluded(op.op_name, op.op_type, io)

    def _is_marked(self, op: OpRecord) -> bool:
        node = self._names.node(op.op_name)
        if node is not None and node.attributes.get(_MARK) == "true":
            return True
        return self._in_class is not None and self._in_class.search(op.op_name) is not None
